(* Theorem C2 of docs/lower-bounds.md in closed form, I/O >= 4Zd/sqrt(M) - Z - M for M <= 4 d^2, as
   16 (Zd)^2 <= M (I/O + M + Z)^2: the scores of Z pairs and their products with values, d of each for a pair. *)

From Coq Require Import Lia ZArith.
From mathcomp Require Import all_ssreflect.
From pebblesim Require Import loomis_whitney capacities segments pebbles matmul.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Lemma less_than_twice r M d : r ^ 2 <= M ^ 3 -> M <= 4 * d ^ 2 -> r <= 2 * M * d.
Proof.
move=> small few; rewrite -leq_sqr; apply: leq_trans small _.
rewrite (_ : (2 * M * d) ^ 2 = M ^ 2 * (4 * d ^ 2)); last by rewrite !expnMn mulnA [2 ^ 2 * _]mulnC.
by rewrite expnS mulnC leq_mul2l few orbT.
Qed.

(* s + 1 segments with at most r of the 2Zd products each, kappa free starts, w words. *)
Lemma words_with_free_starts Z d M s r kappa w : 0 < d -> r ^ 2 <= M ^ 3 -> M <= 4 * d ^ 2 ->
  s * ((3 * M).+1 - M) + M <= w + kappa -> d * kappa + Z * d <= s.+1 * r -> 2 * (Z * d) <= s.+1 * r ->
  16 * (Z * d) ^ 2 <= M * (w + M + Z) ^ 2.
Proof.
move=> d_pos small few many free_ all_; have twice := less_than_twice small few.
have [M0|M_pos] := posnP M.
  by move: twice all_; rewrite M0 muln0 mul0n leqn0 => /eqP->; rewrite muln0 leqn0 muln_eq0 /= => /eqP->.
have step : 4 * (Z * M * d) <= (w + M + Z) * r.
  rewrite -(leq_pmul2l d_pos); set u := 2 * M * d - r; have two : 2 * M * d = r + u by rewrite addnC subnK.
  have paid_ : s.+1 * u + 2 * (Z * d) <= d * (w + M + Z).
    have := leq_mul (leqnn d) many; move: free_ two; clearbody u.
    have -> : (3 * M).+1 - M = 2 * M + 1 by rewrite -addn1 -addnBAC; [rewrite -[3]/(2 + 1) mulnDl mul1n addnK | exact: leq_pmull].
    by move=> /leP + + /leP; rewrite -!multE -!plusE => ? ? ?; apply/leP; nia.
  apply: leq_trans (_ : (s.+1 * u + 2 * (Z * d)) * r <= _); last by rewrite [X in _ <= X]mulnA leq_mul2r paid_ orbT.
  apply: leq_trans (_ : 2 * (Z * d) * u + 2 * (Z * d) * r <= _).
    by rewrite -mulnDr [u + r]addnC -two; apply/leP; rewrite -!multE; nia.
  by rewrite mulnDl leq_add2r [s.+1 * u * r]mulnAC leq_mul2r all_ orbT.
have : (4 * (Z * M * d)) ^ 2 <= (w + M + Z) ^ 2 * M ^ 3.
  by apply: leq_trans (leq_mul (leqnn _) small); rewrite -expnMn leq_sqr.
move=> big; rewrite -(@leq_pmul2r (M ^ 2)) ?expn_gt0 ?M_pos //.
apply: leq_trans (leq_trans _ big) _; apply/leP; rewrite !expnS !expn0 -!multE; nia.
Qed.

Lemma card_sum_set (A B : finType) (C : {set A + B}) :
  #|C| = #|[set a | inl a \in C]| + #|[set b | inr b \in C]|.
Proof.
have left_ : injective (@inl A B) by move=> ? ? [].
have right_ : injective (@inr A B) by move=> ? ? [].
rewrite -(card_imset _ left_) -(card_imset _ right_) -(cardsID [set inl a | a in A] C).
congr (_ + _); apply: eq_card => x; rewrite !inE.
  apply/andP/imsetP => [[xC /imsetP[a _ e]]|[a + ->]]; first by exists a; rewrite // inE -e.
  by rewrite inE => aC; split => //; exact: imset_f.
apply/andP/imsetP => [[no xC]|[b + ->]].
  by case: x no xC => [a|b] no xC; [case/negP: no; exact: imset_f | exists b; rewrite // inE].
by rewrite inE => bC; split => //; apply/imsetP => -[].
Qed.

Section Attention.

Variables (V : finType) (G : graph V) (M : nat) (g : seq (move V)).
Hypothesis complete_g : complete G M g.

(* A family each: a word of Q, of K, the score and the value of a pair, a word of V, of O. *)
Variables I J L K : finType.
Definition words := (I * L + L * J + I * J + (J * K + I * K))%type.
Notation of_pair := (fun x : I * J => inl (inr x) : words).
Notation of_out := (fun x : I * K => inr (inr x) : words).
Variables (family : V -> option words) (q : I * L -> V) (key : L * J -> V) (value : J * K -> V).
Variables (score : I * J * L -> V) (weight : I * J -> V) (term : I * K * J -> V) (D : {set I * J}).

Hypothesis q_input : forall x, q x \in inputs G /\ family (q x) = Some (inl (inl (inl x))).
Hypothesis key_input : forall x, key x \in inputs G /\ family (key x) = Some (inl (inl (inr x))).
Hypothesis value_input : forall x, value x \in inputs G /\ family (value x) = Some (inr (inl x)).
Hypothesis score_of : forall x, x.1 \in D ->
  [/\ q (x.1.1, x.2) \in pred G (score x), key (x.2, x.1.2) \in pred G (score x) & family (score x) = Some (of_pair x.1)].
(* By additions of any shape, and what follows from the score alone, a product comes to the value of its pair. *)
Hypothesis weight_of : forall x, x \in D -> family (weight x) = Some (of_pair x) /\ weight x \notin inputs G.
Hypothesis finished : forall x, x.1 \in D ->
  exists2 way, path (in_tree G family (of_pair x.1)) (score x) way & last (score x) way = weight x.1.
Hypothesis term_of : forall x, (x.1.1, x.2) \in D ->
  [/\ weight (x.1.1, x.2) \in pred G (term x), value (x.2, x.1.2) \in pred G (term x) & family (term x) = Some (of_out x.1)].
Hypothesis summed : forall x, (x.1.1, x.2) \in D -> exists way : seq V,
  let last := last (term x) way in
  [/\ path (in_tree G family (of_out x.1)) (term x) way, last \in outputs G, last \notin inputs G
    & family last = Some (of_out x.1)].

Section Counted.

Variable x0 : move V.
Notation n := (size g).
Notation red_at t := (red (at_time G g t)).
Notation red_ := (red_family G g family).
Notation paid_ := (paid G g x0 family).
Notation meets_ := (meets G g family).

Definition trees : {set words} := [set of_pair x | x in D].
Definition tree (p : I * J * L + I * K * J) : option words :=
  if p is inl x then if x.1 \in D then Some (of_pair x.1) else None else None.

(* Episodes that count: paid ones, and those of a pair that make all products of its score. *)
Definition whole t := [set f in trees | red_ t f & [forall x, (tree (inl x) == Some f) ==> meets_ (fun u => computes g x0 u (score x)) f t]].
Definition R t := paid_ t :|: whole t.

Lemma counted_red t f : f \in R t -> red_ t f.
Proof. by rewrite in_setU => /orP[/paid_red//|]; rewrite inE => /and3P[]. Qed.

Lemma counted_prev t f : f \in R t.+1 -> red_ t f -> f \in R t.
Proof.
rewrite !in_setU => /orP[p now|]; first by rewrite (paid_prev p now).
rewrite inE => /and3P[f_tree _ /forallP all_] now; apply/orP; right; rewrite inE f_tree now /=.
by apply/forallP => x; apply/implyP => /(implyP (all_ x)) m; exact: meets_prev m now.
Qed.

Lemma counted_next t f : f \in R t -> red_ t.+1 f -> f \in R t.+1.
Proof.
rewrite !in_setU => /orP[p now|]; first by rewrite (paid_next p now).
rewrite inE => /and3P[f_tree _ /forallP all_] now; apply/orP; right; rewrite inE f_tree now /=.
by apply/forallP => x; apply/implyP => /(implyP (all_ x)) m; exact: meets_next m now.
Qed.

Lemma counted_later a b f : a <= b -> f \in R a -> (forall v, a < v -> v <= b -> red_ v f) -> f \in R b.
Proof.
move=> ab now; elim: b ab => [|b IH]; first by rewrite leqn0 => /eqP<-.
rewrite leq_eqVlt => /orP[/eqP<-//|]; rewrite ltnS => ab stay.
apply: counted_next; last exact: stay.
by apply: IH => // v av vb; apply: stay => //; exact: leqW.
Qed.

Lemma counted_earlier a b f : a <= b -> f \in R b -> (forall v, a <= v -> v < b -> red_ v f) -> f \in R a.
Proof.
elim: b => [|b IH]; first by rewrite leqn0 => /eqP->.
rewrite leq_eqVlt => /orP[/eqP->//|]; rewrite ltnS => ab now stay.
apply: IH => // [|v av vb]; last by apply: stay => //; exact: leqW.
by apply: counted_prev now _; exact: stay.
Qed.

Lemma weight_counted t x : t <= n -> x \in D -> weight x \in red_at t -> of_pair x \in R t.
Proof.
move=> tn xD w_red; have [e _] := weight_of xD; rewrite in_setU.
case: (boolP (of_pair x \in paid_ t)) => //= unpaid; rewrite inE imset_f //= (red_familyI w_red e) /=.
apply/forallP => -[y l]; apply/implyP; rewrite /tree /=; case: ifP => // yD /eqP[ey]; subst y.
have [way path_ last_] := finished (yD : (x, l).1 \in D); have [_ _ ef] := score_of (yD : (x, l).1 \in D).
have e_last : family (last (score (x, l)) way) = Some (of_pair x) by rewrite last_.
have last_red : last (score (x, l)) way \in red_at t by rewrite last_.
have [u ut [c _ stay]] := free_episode_makes_tree complete_g tn path_ e_last ef last_red unpaid.
apply/meetsP; exists u; first exact: leq_trans ut tn.
by split => // v; rewrite (minn_idPr ut) (maxn_idPl ut); exact: stay.
Qed.

Definition products : {set I * J * L + I * K * J} :=
  [set p | match p with inl x => x.1 \in D | inr x => (x.1.1, x.2) \in D end].

Definition made t : {set I * J * L + I * K * J} := [set p in products | match p with
  | inl x => computes g x0 t (score x) && (of_pair x.1 \in R t.+1)
  | inr x => useful G g x0 family t (term x) (of_out x.1) end].

Lemma in_products_l x : (inl x \in products) = (x.1 \in D).
Proof. by rewrite inE. Qed.

Lemma in_products_r x : (inr x \in products) = ((x.1.1, x.2) \in D).
Proof. by rewrite inE. Qed.

Lemma term_made x : (x.1.1, x.2) \in D -> exists2 t, t < n & inr x \in made t.
Proof.
move=> xD; have [way [path_ out no_input e]] := summed xD.
have [t tn use] := useful_path x0 complete_g path_ out no_input e.
by exists t; rewrite // inE in_products_r xD.
Qed.

Lemma score_made (k0 : K) x : x.1 \in D -> exists2 t, t < n & inl x \in made t.
Proof.
case: x => [[i j] l] xD; have [t tn] := @term_made (i, k0, j) xD; rewrite inE => /andP[_ use].
have [w_pred _ _] := term_of (xD : ((i, k0, j).1.1, (i, k0, j).2) \in D).
have w_red := useful_red complete_g tn use w_pred; have [ew w_no] := weight_of xD.
have [way path_ last_] := finished (xD : ((i, j), l).1 \in D).
have [_ _ es] := score_of (xD : ((i, j), l).1 \in D).
have := weight_counted (ltnW tn) xD w_red; rewrite in_setU => /orP[p|w].
  have [u ut [c pu]] := paid_computed complete_g (ltnW tn) ew w_no w_red p.
  have [|s sn /andP[cs ps]] := useful_along complete_g (x0 := x0) path_.
    by exists u; [exact: ltn_trans ut tn | rewrite last_ /useful c].
  by exists s; rewrite // inE in_products_l xD cs in_setU ps.
have inR : of_pair (i, j) \in R t by rewrite in_setU w orbT.
move: w; rewrite inE => /and3P[_ _ /forallP/(_ ((i, j), l))]; rewrite /tree /= xD eqxx /=.
case/meetsP => u un [c stay]; exists u; rewrite // inE in_products_l xD c /=.
case: (leqP t u.+1) => tu.
  by apply: (counted_later tu inR) => v tv vu; apply: stay; rewrite ?geq_min ?leq_max ?vu ?orbT // (ltnW tv).
by apply: (counted_earlier (ltnW tu) inR) => v uv vt; apply: stay; rewrite ?geq_min ?leq_max ?uv ?(ltnW vt) ?orbT.
Qed.

Lemma all_made (k0 : K) : products \subset evaluated made 0 n.
Proof.
apply/subsetP => -[] x; rewrite ?in_products_l ?in_products_r.
  by move=> /(score_made k0)[t tn p]; exact: (made_in (leq0n t) tn p).
by move=> /term_made[t tn p]; exact: (made_in (leq0n t) tn p).
Qed.

Lemma paid_counts t : paid_ t \subset R t.
Proof. exact: subsetUl. Qed.

Lemma free_makes t f : t < n -> free_start R paid_ t f -> f \in trees /\
  forall p, tree p = Some f -> exists u, [/\ t <= u, u < n, p \in made u & forall v, t < v -> v <= u.+1 -> f \in R v].
Proof.
move=> tn /and3P[now before unpaid]; move: (now); rewrite in_setU (negbTE unpaid) /=.
rewrite inE => /and3P[f_tree _ /forallP all_]; split => // p e; case: p => [x|//] in e *.
have := all_ x; rewrite e eqxx /= => /meetsP[u un [c stay]].
have tu : t <= u.
  rewrite leqNgt; apply/negP => ut; case/negP: before; apply: (counted_prev now).
  by apply: stay; rewrite ?geq_min ?leq_max ?leqnSn ?ut ?orbT.
have stays_ v : t < v -> v <= u.+1 -> f \in R v.
  move=> tv vu; apply: (counted_later tv now) => y ty yv.
  by apply: stay; rewrite ?geq_min ?leq_max ?(leq_trans yv vu) ?orbT // (ltnW ty).
exists u; split => //; move: e; rewrite inE /tree in_products_l c; case: ifP => // xD [e] /=.
by rewrite e; exact: stays_.
Qed.

Lemma trees_are_large f : f \in trees -> #|[set p in products | tree p == Some f]| = #|L|.
Proof.
case/imsetP => x xD ->.
have inj : injective (fun l : L => inl (x, l) : I * J * L + I * K * J) by move=> l l' [].
rewrite -[#|L|]cardsT -(card_imset _ inj).
apply: eq_card => p; apply/idP/imsetP => [|[l _ ->]]; last by rewrite !inE /= xD eqxx.
by rewrite !inE; case: p => [[y l]|y] /andP[_] //=; case: ifP => // _ /eqP[->]; exists l.
Qed.

Lemma card_terms : #|[set x : I * K * J | (x.1.1, x.2) \in D]| = #|D| * #|K|.
Proof.
have inj : injective (fun x : I * J * K => (x.1.1, x.2, x.1.2)) by move=> [[i j] k] [[i' j'] k'] [-> -> ->].
rewrite -[#|K|]cardsT -cardsX -(card_imset _ inj).
apply: eq_card => -[[i k] j]; apply/idP/imsetP => [|[[[i' j'] k'] + [-> -> ->]]]; rewrite !inE /= ?andbT //.
by move=> ijD; exists (i, j, k); rewrite ?inE ?ijD.
Qed.

Lemma card_products : #|products| = #|D| * #|L| + #|D| * #|K|.
Proof.
rewrite card_sum_set -card_terms; congr (_ + _); last by apply: eq_card => x; rewrite !inE.
by rewrite -[#|L|]cardsT -cardsX; apply: eq_card => -[x l]; rewrite !inE andbT.
Qed.

Lemma card_without_tree : #|[set p in products | tree p == None]| = #|D| * #|K|.
Proof.
rewrite card_sum_set -card_terms -[RHS]add0n; congr (_ + _).
  by apply/eqP; rewrite cards_eq0; apply/eqP/setP => x; rewrite !inE /=; case: ifP.
by apply: eq_card => x; rewrite !inE andbT.
Qed.

Lemma capacity u v : u <= v -> v <= n -> 27 * #|evaluated made u v| ^ 2 <= #|reach R u v| ^ 3.
Proof.
move=> uv vn; set E := evaluated made u v.
pose S := [set x | inl x \in E]; pose O := [set x | inr x \in E].
have at_time p : p \in E -> exists t, [/\ t < n, p \in made t, R t \subset reach R u v & R t.+1 \subset reach R u v].
  move=> /bigcupP[t ut p_made]; exists t; split => //; first exact: leq_trans (ltn_ord t) vn.
    exact: in_reach ut (ltnW (ltn_ord t)).
  exact: in_reach (leqW ut) (ltn_ord t).
have read_ t w f : t <= n -> family w = Some f -> w \in inputs G -> w \in red_at t -> f \in R t.
  by move=> tn e i w_red; rewrite in_setU (paid_input x0 complete_g tn e i w_red).
have of_score x : x \in S -> [/\ inl (inl (inl (x.1.1, x.2))) \in reach R u v,
    inl (inl (inr (x.2, x.1.2))) \in reach R u v & of_pair x.1 \in reach R u v].
  rewrite inE => /at_time[t [tn]]; rewrite inE => /andP[+ /andP[c now]] sub next; rewrite in_products_l => xD.
  have [qp kp _] := score_of xD; have [qi qf] := q_input (x.1.1, x.2); have [ki kf] := key_input (x.2, x.1.2).
  have operand y : y \in pred G (score x) -> y \in red_at t.
    move=> yp; have := allowed_at x0 complete_g tn; move: c; rewrite /computes /allowed.
    by case: (nth x0 g t) => // z /eqP-> /andP[/andP[_ /subsetP/(_ y yp)]].
  split; [apply: (subsetP sub); exact: read_ (ltnW tn) qf qi (operand _ qp) | | exact: (subsetP next)].
  by apply: (subsetP sub); exact: read_ (ltnW tn) kf ki (operand _ kp).
have of_term x : x \in O -> [/\ of_pair (x.1.1, x.2) \in reach R u v, inr (inl (x.2, x.1.2)) \in reach R u v
    & of_out x.1 \in reach R u v].
  rewrite inE => /at_time[t [tn]]; rewrite inE => /andP[+ use] sub next; rewrite in_products_r => xD.
  have [wp vp _] := term_of xD; have [vi vf] := value_input (x.2, x.1.2).
  have operand y := useful_red complete_g tn use (u := y).
  split; first by apply: (subsetP sub); exact: weight_counted (ltnW tn) xD (operand _ wp).
    by apply: (subsetP sub); exact: read_ (ltnW tn) vf vi (operand _ vp).
  by apply: (subsetP next); rewrite in_setU; case/andP: use => _ ->.
pose H : {set words} := [set f | match f with
  | inl (inl (inl x)) => x \in left_pairs S | inl (inl (inr x)) => x \in right_pairs S | inl (inr x) => x \in pairs S O
  | inr (inl x) => x \in right_pairs O | inr (inr x) => x \in result_pairs O end].
have card_H : #|H| = #|pairs S O| + (#|left_pairs S| + #|right_pairs S| + (#|right_pairs O| + #|result_pairs O|)).
  rewrite !card_sum_set [RHS]addnA [#|pairs S O| + _]addnC.
  by congr (_ + _ + _ + (_ + _)); apply: eq_card => x; rewrite !inE.
rewrite /E card_sum_set -/E -/S -/O; apply: leq_trans (two_products S O) _; rewrite -card_H leq_exp2r //.
apply/subset_leq_card/subsetP => -[[[x|x]|x]|[x|x]]; rewrite inE.
- by case/imsetP => y /of_score[? _ _] ->.
- by case/imsetP => y /of_score[_ ? _] ->.
- by rewrite inE => /orP[] /imsetP[y]; [case/of_score => _ _ ? -> | case/of_term => ? _ _ ->].
- by case/imsetP => y /of_term[_ ? _] ->.
by case/imsetP => y /of_term[_ _ ?] ->.
Qed.

Lemma words_moved (k0 : K) d : #|L| = d -> #|K| = d -> M <= 4 * d ^ 2 -> 0 < d ->
  16 * (#|D| * d) ^ 2 <= M * (io g + M + #|D|) ^ 2.
Proof.
move=> Ld Kd few_ d_pos.
have few t : t <= n -> #|R t| <= M.
  by move=> tn; exact: leq_trans (counted_few counted_red t) (few_red x0 complete_g tn).
have within u v : u <= v -> v <= n -> #|reach R u v| <= 3 * M -> #|evaluated made u v| <= root (M ^ 3).
  move=> uv vn small; apply: root_most; rewrite -(@leq_pmul2l 27) //.
  by apply: leq_trans (capacity uv vn) _; rewrite -[27]/(3 ^ 3) -expnMn leq_exp2r.
have enough : M <= 3 * M by exact: leq_pmull.
have one := one_counted x0 counted_red counted_prev.
have pebble := counted_needs_a_pebble x0 complete_g counted_red counted_prev.
have R_0 := counted_0 counted_red.
have one_paid := one_start G x0 family (g := g).
have [s [kappa [many one_segment free_ all_]]] := free_starts paid_counts one one_paid few pebble enough R_0 within
  (all_made k0) trees_are_large free_makes.
have moved := paid_episodes_move_words G g x0 family.
have card_trees : #|trees| = #|D| by rewrite card_imset // => x y [].
rewrite Ld card_without_tree Kd in free_; rewrite card_products Ld Kd addnn -mul2n in all_.
case: s => [|s] in many one_segment free_ all_ *.
  have [few_free reached] := one_segment erefl; rewrite card_trees in few_free.
  have made_ : 27 * (2 * (#|D| * d)) ^ 2 <= #|reach R 0 n| ^ 3.
    apply: leq_trans (capacity (leq0n n) (leqnn n)); rewrite leq_mul2l /= leq_sqr.
    by apply: leq_trans (subset_leq_card (all_made k0)); rewrite card_products Ld Kd addnn mul2n.
  have none : 0 < 0 -> 0 * ((3 * M).+1 - M) + M <= #|reach R 0 n| by [].
  have := words_of_segments all_ none (fun _ => made_); rewrite (expnMn 2) mulnA => near.
  apply: leq_trans near _; rewrite leq_mul2l leq_sqr; apply/orP; right.
  rewrite addnAC leq_add2r; apply: leq_trans reached _; exact: leq_add moved few_free.
apply: words_with_free_starts d_pos (root_square _) few_ _ free_ all_.
by apply: leq_trans (many isT) _; rewrite leq_add2r.
Qed.

End Counted.

Theorem attention d : #|L| = d -> #|K| = d -> M <= 4 * d ^ 2 -> 16 * (#|D| * d) ^ 2 <= M * (io g + M + #|D|) ^ 2.
Proof.
move=> Ld Kd few; case: d => [|d] in Ld Kd few *; first by rewrite muln0.
have [->|[p0 _]] := set_0Vmem D; first by rewrite cards0.
have /card_gt0P[k0 _] : 0 < #|K| by rewrite Kd.
exact: (@words_moved (Delete (weight p0)) k0).
Qed.

End Attention.
