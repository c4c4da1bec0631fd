(* Theorem B of docs/lower-bounds.md in closed form, I/O >= 2N/sqrt(M) - M, as 4 N^2 <= M (I/O + M)^2.
   It holds for every game with recomputation, every shape of the summation trees, and every set of N products
   (i, j, l), as of sparse matrices. *)

From Coq Require Import Lia ZArith.
From mathcomp Require Import all_ssreflect.
From pebblesim Require Import loomis_whitney segments pebbles.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Lemma mean_of_three x y z : 27 * (x * y * z) <= (x + y + z) ^ 3.
Proof.
rewrite !expnS expn0 muln1; apply/leP/Nat2Z.inj_le; rewrite -!multE -!plusE !Nat2Z.inj_mul !Nat2Z.inj_add.
move: (Nat2Z.is_nonneg x) (Nat2Z.is_nonneg y) (Nat2Z.is_nonneg z).
move: (Z.of_nat x) (Z.of_nat y) (Z.of_nat z) => u v w u0 v0 w0; rewrite [Z.of_nat 27]/=.
have := Z.mul_nonneg_nonneg _ _ w0 (Z.square_nonneg (u - v)%Z).
have at_least : (0 <= 4 * (u + v) + w)%Z by lia.
have := Z.mul_nonneg_nonneg _ _ at_least (Z.square_nonneg (u + v - 2 * w)%Z).
nia.
Qed.

(* The largest whole number with a square of at most c. *)
Definition root c := \max_(m < c.+1 | m ^ 2 <= c) m.

Lemma root_most c m : m ^ 2 <= c -> m <= root c.
Proof.
move=> mc; have m_c : m < c.+1 by rewrite ltnS (leq_trans _ mc) // -mulnn; case: m {mc} => // m; exact: leq_pmulr.
exact: (@leq_bigmax_cond _ (fun i : 'I_c.+1 => i ^ 2 <= c) (@nat_of_ord _) (Ordinal m_c)).
Qed.

Lemma root_square c : root c ^ 2 <= c.
Proof. by rewrite /root; elim/big_ind: _ => // x y xc yc; rewrite /maxn; case: ifP. Qed.

(* What N products say of the words w, where s + 1 segments hold at most root (M^3) products each, or one holds all. *)
Lemma words_of_segments N M s w : N <= s.+1 * root (M ^ 3) -> (0 < s -> s * ((3 * M).+1 - M) + M <= w) ->
  (s = 0 -> 27 * N ^ 2 <= w ^ 3) -> 4 * N ^ 2 <= M * (w + M) ^ 2.
Proof.
move=> few many one.
have [wide|narrow] := leqP (2 * M * s.+1) (w + M).
  have : N ^ 2 <= s.+1 ^ 2 * M ^ 3.
    by apply: leq_trans (leq_mul (leqnn _) (root_square _)); rewrite -expnMn leq_sqr.
  have : (2 * M * s.+1) ^ 2 <= (w + M) ^ 2 by rewrite leq_sqr.
  rewrite !expnS !expn0 !muln1 => /leP + /leP; rewrite -!multE -!plusE => squares products; apply/leP; nia.
case: s => [|s] in few many one narrow.
  have := one erefl; rewrite !expnS !expn0 !muln1 => /leP; move: narrow => /ltP.
  rewrite -!multE -!plusE => narrow products; apply/leP; nia.
exfalso; move: narrow (many isT) => /ltP + /leP; rewrite -!multE -!plusE -minusE; nia.
Qed.

Section Product.

Variables (V : finType) (G : graph V) (M : nat) (g : seq (move V)).
Hypothesis complete_g : complete G M g.

(* C = AB: an element (i, l) of A, (l, j) of B and (i, j) of C is a family each. *)
Variables I J L : finType.
Definition element := (I * L + L * J + I * J)%type.
Variables (family : V -> option element) (a : I * L -> V) (b : L * J -> V) (product : I * J * L -> V).
Variable D : {set I * J * L}.

Hypothesis a_input : forall x, a x \in inputs G /\ family (a x) = Some (inl (inl x)).
Hypothesis b_input : forall x, b x \in inputs G /\ family (b x) = Some (inl (inr x)).
Hypothesis product_of : forall p, p \in D ->
  [/\ a (p.1.1, p.2) \in pred G (product p), b (p.2, p.1.2) \in pred G (product p) & family (product p) = Some (inr p.1)].
(* By additions of any shape within the family of its element a product comes to an output. *)
Hypothesis summed : forall p, p \in D -> exists way : seq V,
  let last := last (product p) way in
  [/\ path (in_tree G family (inr p.1)) (product p) way, last \in outputs G, last \notin inputs G
    & family last = Some (inr p.1)].

Theorem matmul : 4 * #|D| ^ 2 <= M * (io g + M) ^ 2.
Proof.
have [->|[p0 _]] := set_0Vmem D; first by rewrite cards0.
pose x0 := Delete (product p0).
pose reach_ := reach (paid G g x0 family).
pose made t := [set p in D | useful G g x0 family t (product p) (inr p.1)].
have in_time u v : v <= size g -> evaluated made u v \subset [set: I * J * L] by move=> _; exact: subsetT.
have capacity u v : u <= v -> v <= size g -> 27 * #|evaluated made u v| ^ 2 <= #|reach_ u v| ^ 3.
  move=> uv vn; set E := evaluated made u v.
  have use p : p \in E -> [/\ inl (inl (p.1.1, p.2)) \in reach_ u v, inl (inr (p.2, p.1.2)) \in reach_ u v
      & inr p.1 \in reach_ u v].
    move=> /bigcupP[t ut]; rewrite inE => /andP[pD p_useful].
    have tn : t < size g := leq_trans (ltn_ord t) vn.
    have [ap bp _] := product_of pD; have [a_in a_f] := a_input (p.1.1, p.2); have [b_in b_f] := b_input (p.2, p.1.2).
    have a_red := useful_red complete_g tn p_useful ap; have b_red := useful_red complete_g tn p_useful bp.
    have sub := subsetP (in_reach (paid G g x0 family) ut (ltnW (ltn_ord t))).
    have next := subsetP (in_reach (paid G g x0 family) (leqW ut) (ltn_ord t)).
    split; first exact/sub/(paid_input x0 complete_g (ltnW tn) a_f a_in a_red).
      exact/sub/(paid_input x0 complete_g (ltnW tn) b_f b_in b_red).
    by apply: next; case/andP: p_useful.
  apply: leq_trans (leq_mul (leqnn 27) (loomis_whitney E)) _.
  apply: leq_trans (mean_of_three _ _ _) _; rewrite leq_exp2r //.
  pose A := [set (inl (inl x) : element) | x in left_pairs E].
  pose B := [set (inl (inr x) : element) | x in right_pairs E].
  pose C := [set (inr x : element) | x in result_pairs E].
  have <- : #|A| = #|left_pairs E| by rewrite card_imset // => x y [].
  have <- : #|B| = #|right_pairs E| by rewrite card_imset // => x y [].
  have <- : #|C| = #|result_pairs E| by rewrite card_imset // => x y [].
  have -> : #|A| + #|B| = #|A :|: B|.
    rewrite cardsU (_ : A :&: B = set0) ?cards0 ?subn0 //; apply/setP => f; rewrite !inE; apply/negP.
    by move=> /andP[/imsetP[x _ ->] /imsetP[y _]].
  have -> : #|A :|: B| + #|C| = #|A :|: B :|: C|.
    rewrite [RHS]cardsU (_ : (A :|: B) :&: C = set0) ?cards0 ?subn0 //; apply/setP => f; rewrite !inE; apply/negP.
    by move=> /andP[/orP[] /imsetP[x _ ->] /imsetP[y _]].
  apply/subset_leq_card/subsetP => f; rewrite !inE => /orP[/orP[]|] /imsetP[x /imsetP[p /use[? ? ?] ->] ->] //.
have all_made : #|evaluated made 0 (size g)| = #|D|.
  apply/eqP; rewrite eqn_leq; apply/andP; split; apply/subset_leq_card/subsetP => p.
    by move=> /bigcupP[t _]; rewrite inE => /andP[].
  move=> pD; have [way [path out no_input f]] := summed pD.
  have [t tn t_useful] := useful_path x0 complete_g path out no_input f.
  by apply/bigcupP; exists (Ordinal tn); rewrite // inE pD.
have few t : t <= size g -> #|paid G g x0 family t| <= M.
  by move=> tn; apply: leq_trans (paid_few G g x0 family t) _; exact: (few_red x0 complete_g).
have within u v : u <= v -> v <= size g -> #|reach_ u v| <= 3 * M -> #|evaluated made u v| <= root (M ^ 3).
  move=> uv vn small; apply: root_most; rewrite -(@leq_pmul2l 27) //.
  by apply: leq_trans (capacity u v uv vn) _; rewrite -[27]/(3 ^ 3) -expnMn leq_exp2r.
have enough : M <= 3 * M by exact: leq_pmull.
have one := one_start G x0 family (g := g).
have pebble := start_needs_a_pebble (x0 := x0) complete_g (family := family).
have [s [few_made many]] := segments one few pebble enough within (leq0n (size g)).
have paid_0 := paid_0 G g x0 family; have words := paid_episodes_move_words G g x0 family.
rewrite all_made in few_made; apply: words_of_segments few_made _ _ => [s_pos|_].
  by apply: leq_trans (many s_pos) _; rewrite paid_0 cards0 addn0.
rewrite -all_made; apply: leq_trans (capacity 0 (size g) _ _) _ => //; rewrite leq_exp2r //.
apply: leq_trans words; have := few_within_reach one (leq0n (size g)) (leqnn _).
by rewrite paid_0 cards0.
Qed.

End Product.
