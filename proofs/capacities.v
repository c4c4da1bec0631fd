(* Two capacities of docs/lower-bounds.md, section 3: of two products that share the families of pairs, as scores and
   P V in C2; and of one product in whole columns. *)

From Coq Require Import Lia ZArith.
From mathcomp Require Import all_ssreflect.
From pebblesim Require Import loomis_whitney.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Lemma four_times_a_product a b : 4 * (a * b) <= (a + b) ^ 2.
Proof. by rewrite sqrnD -[4]/(2 + 2) mulnDl leq_add2r; exact: nat_Cauchy. Qed.

Lemma square_of_columns N a b c : N ^ 2 <= a * b * c -> (2 * N) ^ 2 <= c * (a + b) ^ 2.
Proof.
move=> few; rewrite expnMn; apply: leq_trans (leq_mul (leqnn _) few) _.
by rewrite mulnA [X in X <= _]mulnC leq_mul2l four_times_a_product orbT.
Qed.

(* N1^2 <= abc and N2^2 <= efc: both products together have (2N)^2 <= c (a + b + e + f)^2. *)
Lemma together N1 N2 c x y : (2 * N1) ^ 2 <= c * x ^ 2 -> (2 * N2) ^ 2 <= c * y ^ 2 ->
  (2 * (N1 + N2)) ^ 2 <= c * (x + y) ^ 2.
Proof.
move=> one two; have : (2 * N1) * (2 * N2) <= c * (x * y).
  rewrite -leq_sqr [X in X <= _]expnMn.
  have -> : (c * (x * y)) ^ 2 = (c * x ^ 2) * (c * y ^ 2) by rewrite mulnACA mulnn !expnMn.
  exact: leq_mul.
move=> both; rewrite [2 * (_ + _)]mulnDr (sqrnD (2 * N1)) (sqrnD x) [c * (_ + _)]mulnDr; apply: leq_add.
  by rewrite mulnDr; exact: leq_add.
by rewrite [c * _]mulnCA leq_mul2l both orbT.
Qed.

Lemma pairs_and_others c C : 27 * (c * C ^ 2) <= 4 * (c + C) ^ 3.
Proof.
rewrite !expnS !expn0 !muln1; apply/leP/Nat2Z.inj_le; rewrite -!multE -!plusE !Nat2Z.inj_mul !Nat2Z.inj_add.
move: (Nat2Z.is_nonneg c) (Nat2Z.is_nonneg C); move: (Z.of_nat c) (Z.of_nat C) => u v u0 v0.
rewrite [Z.of_nat 27]/= [Z.of_nat 4]/=.
have at_least : (0 <= u + 4 * v)%Z by lia.
have := Z.mul_nonneg_nonneg _ _ at_least (Z.square_nonneg (v - 2 * u)%Z).
nia.
Qed.

Section TwoProducts.

(* Scores (i, j, l), of Q_il and K_jl, and products (i, k, j) of P_ij and V_jk for O_ik. *)
Variables I J L K : finType.
Variables (S : {set I * J * L}) (O : {set I * K * J}).

Definition pairs := result_pairs S :|: left_pairs O.

Theorem two_products :
  27 * (#|S| + #|O|) ^ 2 <=
  (#|pairs| + (#|left_pairs S| + #|right_pairs S| + (#|right_pairs O| + #|result_pairs O|))) ^ 3.
Proof.
have one : #|S| ^ 2 <= #|left_pairs S| * #|right_pairs S| * #|pairs|.
  by apply: leq_trans (loomis_whitney S) _; rewrite leq_mul2l subset_leq_card ?subsetUl ?orbT.
have two : #|O| ^ 2 <= #|right_pairs O| * #|result_pairs O| * #|pairs|.
  apply: leq_trans (loomis_whitney O) _; rewrite -mulnA [X in X <= _]mulnC leq_mul2l.
  by rewrite subset_leq_card ?subsetUr ?orbT.
have := together (square_of_columns one) (square_of_columns two).
set C := _ + _ + _; rewrite expnMn => all_; rewrite -(@leq_pmul2l 4) // mulnCA.
by apply: leq_trans (pairs_and_others _ C); rewrite leq_mul2l all_ orbT.
Qed.

End TwoProducts.

Section WholeColumns.

Variables I J L : finType.
Variable S : {set I * J * L}.

Definition rows l := [set i | (i, l) \in left_pairs S].
Definition keys l := [set j | (l, j) \in right_pairs S].
Definition words l := #|rows l| + #|keys l|.

Theorem words_of_columns : \sum_l words l = #|left_pairs S| + #|right_pairs S|.
Proof.
rewrite /words big_split /=; congr (_ + _).
  rewrite -[RHS]sum1_card (partition_big (fun x => x.2) xpredT) //=; apply: eq_bigr => l _.
  rewrite sum1_card -(@card_imset _ _ (fun i => (i, l))) => [|i i' []//]; apply: eq_card => -[i k].
  apply/imsetP/andP => [[i' + [-> ->]]|[il /eqP <-]]; first by rewrite inE.
  by exists i; rewrite ?inE.
rewrite -[RHS]sum1_card (partition_big (fun x => x.1) xpredT) //=; apply: eq_bigr => l _.
rewrite sum1_card -(@card_imset _ _ (fun j => (l, j))) => [|j j' []//]; apply: eq_card => -[k j].
apply/imsetP/andP => [[j' + [-> ->]]|[lj /eqP <-]]; first by rewrite inE.
by exists j; rewrite ?inE.
Qed.

(* c pairs, and m words of operands in a column: the column has at most min(c, m^2/4) of the products. *)
Theorem whole_columns : #|S| <= \sum_l minn #|result_pairs S| (words l ^ 2 %/ 4).
Proof.
rewrite -sum1_card (partition_big (fun x => x.2) xpredT) //=; apply: leq_sum => l _.
pose column := [set x in S | x.2 == l].
have -> : \sum_(x in S | x.2 == l) 1 = #|column| by rewrite -sum1_card; apply: eq_bigl => x; rewrite inE.
have -> : #|column| = #|[set x.1 | x in column]|.
  rewrite card_in_imset // => -[p k] [q k']; rewrite !inE /= => /andP[_ /eqP->] /andP[_ /eqP->]; by move->.
rewrite leq_min; apply/andP; split.
  apply/subset_leq_card/subsetP => _ /imsetP[x + ->]; rewrite inE => /andP[xS _]; exact: imset_f.
apply: leq_trans (_ : #|rows l| * #|keys l| <= _).
  rewrite -cardsX; apply/subset_leq_card/subsetP => _ /imsetP[[[i j] k] + ->]; rewrite !inE /= => /andP[xS /eqP e].
  by apply/andP; split; apply/imsetP; exists (i, j, k); rewrite //= e.
by rewrite leq_divRL // mulnC four_times_a_product.
Qed.

End WholeColumns.
