(* Loomis and Whitney's inequality for finite sets of triples, in the words of docs/lower-bounds.md, section 3:
   a set of triples (i, j, l) with a, b, c different pairs (i, l), (l, j), (i, j) has N elements with N^2 <= abc. *)

From mathcomp Require Import all_ssreflect.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Lemma cauchy (T : finType) (C : {set T}) (s : T -> nat) :
  (\sum_(x in C) s x) ^ 2 <= #|C| * \sum_(x in C) s x ^ 2.
Proof.
rewrite -(leq_pmul2l (isT : 0 < 2)).
have -> : 2 * (\sum_(x in C) s x) ^ 2 = \sum_(x in C) \sum_(y in C) 2 * (s x * s y).
  rewrite -mulnn big_distrlr big_distrr /=; apply: eq_bigr => x _; by rewrite big_distrr.
have -> : 2 * (#|C| * \sum_(x in C) s x ^ 2) = \sum_(x in C) \sum_(y in C) (s x ^ 2 + s y ^ 2).
  under [RHS]eq_bigr do rewrite big_split /= sum_nat_const.
  by rewrite big_split /= sum_nat_const -big_distrr /= addnn mul2n.
by apply: leq_sum => x _; apply: leq_sum => y _; exact: nat_Cauchy.
Qed.

Section LoomisWhitney.

Variables I J L : finType.
Implicit Type S : {set I * J * L}.

Definition left_pairs S : {set I * L} := [set (x.1.1, x.2) | x in S].
Definition right_pairs S : {set L * J} := [set (x.2, x.1.2) | x in S].
Definition result_pairs S : {set I * J} := [set x.1 | x in S].

Theorem loomis_whitney S : #|S| ^ 2 <= #|left_pairs S| * #|right_pairs S| * #|result_pairs S|.
Proof.
pose column c := [set x in S | x.1 == c].
have sum_S : #|S| = \sum_(c in result_pairs S) #|column c|.
  rewrite -sum1_card (partition_big (fun x => x.1) (mem (result_pairs S))) /=; last first.
    by move=> x xS; apply: imset_f.
  apply: eq_bigr => c _; rewrite -sum1_card; apply: eq_bigl => x; by rewrite inE.
pose twins := [set p : (I * J * L) * (I * J * L) | [&& p.1 \in S, p.2 \in S & p.1.1 == p.2.1]].
have sum_twins : #|twins| = \sum_(c in result_pairs S) #|column c| ^ 2.
  rewrite -sum1_card (partition_big (fun p => p.1.1) (mem (result_pairs S))) /=; last first.
    by move=> p; rewrite inE => /and3P[pS _ _]; apply: imset_f.
  apply: eq_bigr => c _; rewrite -mulnn -cardsX -sum1_card; apply: eq_bigl => -[x y].
  rewrite !inE /=; case: (x \in S) => //=; case: (y \in S) => /=; rewrite ?andbF //.
  by apply/andP/andP => -[/eqP e /eqP f]; split; apply/eqP; rewrite ?e -?f ?e.
have few_twins : #|twins| <= #|left_pairs S| * #|right_pairs S|.
  pose h (p : (I * J * L) * (I * J * L)) := ((p.1.1.1, p.1.2), (p.2.2, p.2.1.2)).
  rewrite -cardsX -(@card_in_imset _ _ h); last first.
    move=> [[[i j] l] [[i' j'] l']] [[[u v] w] [[u' v'] w']].
    rewrite !inE /= => /and3P[_ _ /eqP[-> ->]] /and3P[_ _ /eqP[-> ->]].
    by rewrite /h /= => -[-> -> -> ->].
  apply/subset_leq_card/subsetP => _ /imsetP[p + ->]; rewrite inE => /and3P[pS qS _].
  by rewrite inE; apply/andP; split; apply/imsetP; [exists p.1 | exists p.2].
rewrite sum_S; apply: leq_trans (cauchy _ _) _.
by rewrite -sum_twins mulnC leq_mul2r few_twins orbT.
Qed.

End LoomisWhitney.
