(* Section 2 of docs/lower-bounds.md: a game is cut where one family more would be within reach. *)

From mathcomp Require Import all_ssreflect.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Segments.

(* R t: the families that have an episode at time t, of those whose episodes count; n: the number of moves. *)
Variables (F : finType) (R : nat -> {set F}) (n M X : nat).

Definition starts t := R t.+1 :\: R t != set0.
Definition number_of_starts a b := \sum_(a <= t < b) starts t.

(* Families within reach from time a to time b. *)
Definition reach a b := \bigcup_(t < b.+1 | a <= t) R t.

Hypothesis one_at_a_time : forall t, t < n -> #|R t.+1 :\: R t| <= 1.
Hypothesis few : forall t, t <= n -> #|R t| <= M.
Hypothesis a_start_needs_a_pebble : forall t, t < n -> starts t -> #|R t| < M.
Hypothesis enough : M <= X.

Lemma reach_refl a : reach a a = R a.
Proof.
apply/setP => f; apply/bigcupP/idP => [[t at_t]|]; last by exists ord_max.
by have /eqP <- : a == t :> nat by rewrite eqn_leq at_t -ltnS /=.
Qed.

Lemma reach_next a b : a <= b -> reach a b.+1 = reach a b :|: R b.+1.
Proof.
move=> ab; rewrite /reach [LHS]big_mkcond big_ord_recr /= leqW //; congr (_ :|: _).
by rewrite [RHS]big_mkcond.
Qed.

Lemma in_reach a b t : a <= t -> t <= b -> R t \subset reach a b.
Proof. by move=> at_ tb; have := @bigcup_sup _ _ (Ordinal (tb : t < b.+1)) (fun t : 'I_b.+1 => a <= t) (fun t => R t) at_. Qed.

Lemma few_within_reach a b : a <= b -> b <= n -> #|reach a b| <= #|R a| + number_of_starts a b.
Proof.
elim: b => [|b IH]; first by rewrite leqn0 => /eqP-> _; rewrite reach_refl /number_of_starts big_geq ?addn0.
rewrite leq_eqVlt => /orP[/eqP<-|]; first by rewrite reach_refl /number_of_starts big_geq ?addn0.
rewrite ltnS => ab bn; rewrite reach_next // /number_of_starts big_nat_recr //= addnA.
have -> : reach a b :|: R b.+1 = reach a b :|: (R b.+1 :\: R b).
  apply/setP => f; rewrite !inE; case: (boolP (f \in R b)) => //= fb.
  by rewrite (subsetP (in_reach ab (leqnn b)) f fb).
apply: leq_trans (leq_card_setU _ _) _; apply: leq_add; first exact: IH (ltnW bn).
case: (boolP (starts b)) => [_|]; first exact: one_at_a_time.
by rewrite negbK => /eqP->; rewrite cards0.
Qed.

(* The products that are evaluated by each move, and the most that are by moves with X families within reach. *)
Variables (P : finType) (made : nat -> {set P}) (G : nat).
Definition evaluated a b := \bigcup_(t < b | a <= t) made t.
Hypothesis capacity : forall a b, a <= b -> b <= n -> #|reach a b| <= X -> #|evaluated a b| <= G.

Lemma evaluated_cat a b c : a <= b -> b <= c -> evaluated a c \subset evaluated a b :|: evaluated b c.
Proof.
move=> ab bc; apply/subsetP => p /bigcupP[t at_ pt]; rewrite inE.
case: (ltnP t b) => [tb|bt]; apply/orP; [left | right]; apply/bigcupP; last by exists t.
by exists (Ordinal tb).
Qed.

Theorem segments a :
  a <= n ->
  exists s, #|evaluated a n| <= s.+1 * G /\ (0 < s -> s * (X.+1 - M) + M <= number_of_starts a n + #|R a|).
Proof.
have [k] := ubnP (n - a); elim: k a => // k IH a; rewrite ltnS => le_k an.
case: (leqP #|reach a n| X) => [fits|more].
  by exists 0; split => //; rewrite mul1n; apply: capacity.
have ex : exists b, (a <= b) && (X < #|reach a b|) by exists n; rewrite an.
case: (ex_minnP ex) => c /andP[ac over] least.
have cn : c <= n by apply: least; rewrite an.
case: c => [|b] in ac over least cn *.
  by move: ac over; rewrite leqn0 => /eqP->; rewrite reach_refl ltnNge (leq_trans (few _)).
move: ac; rewrite leq_eqVlt => /orP[/eqP ab|ab].
  by move: over; rewrite -ab reach_refl ltnNge (leq_trans (few an)).
rewrite ltnS in ab.
have within : #|reach a b| <= X.
  by rewrite leqNgt; apply/negP => more_b; have := least b; rewrite ab more_b ltnn => /(_ isT).
have b_starts : starts b.
  apply: contraTT over; rewrite /starts negbK setD_eq0 -leqNgt reach_next // => next.
  by rewrite (setUidPl (subset_trans next (in_reach ab (leqnn b)))).
have red_b : #|R b| < M by exact: a_start_needs_a_pebble.
have full : X <= number_of_starts a b + #|R a|.
  rewrite addnC -ltnS; apply: leq_trans over _; rewrite reach_next //.
  have -> : reach a b :|: R b.+1 = reach a b :|: (R b.+1 :\: R b).
    apply/setP => f; rewrite !inE; case: (boolP (f \in R b)) => //= fb.
    by rewrite (subsetP (in_reach ab (leqnn b)) f fb).
  apply: leq_trans (leq_card_setU _ _) _; rewrite -[(_ + _).+1]addn1; apply: leq_add; last exact: one_at_a_time.
  exact: few_within_reach (ltnW cn).
have less_ab : a < b.
  rewrite ltn_neqAle ab andbT; apply/eqP => e; move: full.
  by rewrite /number_of_starts e big_geq // leqNgt (leq_trans red_b).
have [|s [few_made many_starts]] := IH b _ (ltnW cn).
  by apply: leq_trans le_k; apply: ltn_sub2l => //; exact: leq_trans less_ab (ltnW cn).
have at_b : 0 < number_of_starts b n by rewrite /number_of_starts big_ltn // b_starts.
exists s.+1; split => [|_].
  apply: leq_trans (subset_leq_card (evaluated_cat ab (ltnW cn))) _.
  apply: leq_trans (leq_card_setU _ _) _; rewrite [s.+2 * G]mulSn; apply: leq_add few_made.
  exact: capacity (ltnW cn) within.
have -> : number_of_starts a n = number_of_starts a b + number_of_starts b n.
  by rewrite /number_of_starts (big_cat_nat _ _ _ ab (ltnW cn)).
have later : s * (X.+1 - M) < number_of_starts b n.
  case: s many_starts {few_made} => // s /(_ isT) many.
  by rewrite -(ltn_add2r #|R b|); apply: leq_trans many; rewrite ltn_add2l.
rewrite mulSn -addnA [s * _ + M]addnC addnA subnK ?(leqW enough) //.
rewrite addnAC addSnnS; exact: leq_add full later.
Qed.

End Segments.
