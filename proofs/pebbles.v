(* The red-blue pebble game of Hong and Kung, with recomputation, and the paid episodes of families
   (section 1 of docs/lower-bounds.md). *)

From mathcomp Require Import all_ssreflect.
From pebblesim Require Import segments.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Section Game.

Variable V : finType.

Record graph := Graph {pred : V -> {set V}; inputs : {set V}; outputs : {set V}}.

Inductive move := Read of V | Write of V | Compute of V | Delete of V.

Record state := State {red : {set V}; blue : {set V}}.

Definition step s m :=
  match m with
  | Read v | Compute v => State (v |: red s) (blue s)
  | Write v => State (red s) (v |: blue s)
  | Delete v => State (red s :\ v) (blue s)
  end.

Variables (G : graph) (M : nat).

(* A move is allowed with M red pebbles; an input is never computed. *)
Definition allowed s m :=
  match m with
  | Read v => v \in blue s
  | Write v => v \in red s
  | Compute v => (v \notin inputs G) && (pred G v \subset red s)
  | Delete _ => true
  end && (#|red (step s m)| <= M).

Definition begin := State set0 (inputs G).

Fixpoint legal_from s g := if g is m :: g' then allowed s m && legal_from (step s m) g' else true.

Definition at_time g t := foldl step begin (take t g).

Definition complete g := legal_from begin g && (outputs G \subset blue (at_time g (size g))).

Definition is_word m := match m with Read _ | Write _ => true | _ => false end.

(* I/O: the number of reads and writes. *)
Definition io g := count is_word g.

Section OneGame.

Variables (g : seq move) (x0 : move).
Hypothesis complete_g : complete g.
Notation n := (size g).
Notation mv := (nth x0 g).
Notation red_at t := (red (at_time g t)).
Notation blue_at t := (blue (at_time g t)).

Lemma at_next t : t < n -> at_time g t.+1 = step (at_time g t) (mv t).
Proof. by move=> tn; rewrite /at_time (take_nth x0 tn) -cats1 foldl_cat. Qed.

Lemma allowed_at t : t < n -> allowed (at_time g t) (mv t).
Proof.
have /andP[legal _] := complete_g; rewrite /at_time.
elim: (g) begin t legal => // m h IH s [|t] /= /andP[ok rest] tn; first by [].
exact: IH.
Qed.

Lemma red_0 : red_at 0 = set0.
Proof. by rewrite /at_time take0. Qed.

Lemma few_red t : t <= n -> #|red_at t| <= M.
Proof.
case: t => [|t] tn; first by rewrite red_0 cards0.
by have /andP[_] := allowed_at tn; rewrite at_next.
Qed.

Lemma placed v t : t < n -> v \in red_at t.+1 -> v \notin red_at t -> mv t = Read v \/ mv t = Compute v.
Proof.
move=> tn; rewrite at_next //; case: (mv t) => u /=; rewrite ?inE.
- by case: eqP => [->|_ /= ->] //; left.
- by move=> ->.
- by case: eqP => [->|_ /= ->] //; right.
- by case/andP => _ ->.
Qed.

Lemma red_after_placed v t : t < n -> mv t = Read v \/ mv t = Compute v -> red_at t.+1 = v |: red_at t.
Proof. by move=> tn; rewrite at_next // => -[->|->]. Qed.

Lemma blue_written v t : t <= n -> v \in blue_at t -> v \in inputs G \/ exists2 w, w < t & mv w = Write v.
Proof.
elim: t => [|t IH] tn; first by rewrite /at_time take0; left.
have old : v \in blue_at t -> v \in inputs G \/ exists2 w, w < t.+1 & mv w = Write v.
  by move=> /(IH (ltnW tn))[|[w wt e]]; [left | right; exists w; rewrite ?ltnS ?(ltnW wt)].
rewrite at_next //; case e: (mv t) => [u|u|u|u] //=.
by rewrite !inE => /orP[/eqP->|//]; right; exists t.
Qed.

(* -- families ------------------------------------------------------------------------------------------------- *)

Variables (F : finType) (family : V -> option F).

Definition red_family t f := [exists v in red_at t, family v == Some f].

Lemma red_familyI t v f : v \in red_at t -> family v = Some f -> red_family t f.
Proof. by move=> vt e; apply/exists_inP; exists v; rewrite ?e. Qed.

(* Move t reads or writes a vertex of the family. *)
Definition word_of t f := match mv t with Read v | Write v => family v == Some f | _ => false end.

Definition stays f a b := all (fun t => red_family t f) (iota a (b.+1 - a)).

Lemma staysP f a b : reflect (forall t, a <= t -> t <= b -> red_family t f) (stays f a b).
Proof.
apply: (iffP allP) => [all_red t at_ tb | all_red t].
  by apply: all_red; rewrite mem_iota at_ subnKC ?ltnS // (leq_trans at_) // leqW.
rewrite mem_iota => /andP[at_ tb]; apply: all_red => //.
case: (leqP a b.+1) => [ab|/ltnW ba]; first by move: tb; rewrite subnKC.
by move: tb; rewrite (eqP (ba : b.+1 - a == 0)) addn0 ltnNge at_.
Qed.

(* The episode of the family at time t contains the end of a move of some kind. *)
Definition meets (kind : nat -> bool) f t := [exists w : 'I_n, kind w && stays f (minn t w.+1) (maxn t w.+1)].

Lemma meetsP (kind : nat -> bool) f t :
  reflect (exists2 w, w < n & kind w /\ forall u, minn t w.+1 <= u -> u <= maxn t w.+1 -> red_family u f)
    (meets kind f t).
Proof.
apply: (iffP existsP) => [[w /andP[e /staysP s]]|[w wn [e s]]]; first by exists w.
by exists (Ordinal wn); rewrite e /=; apply/staysP.
Qed.

Lemma meets_red kind f t : meets kind f t -> red_family t f.
Proof. by case/meetsP => w _ [_]; apply; rewrite ?geq_minl ?leq_maxl. Qed.

Lemma meets_next kind f t : meets kind f t -> red_family t.+1 f -> meets kind f t.+1.
Proof.
case/meetsP => w wn [e s] next; apply/meetsP; exists w => //; split => // u low high.
have [-> //|/eqP ne] := eqVneq u t.+1; apply: s.
  by rewrite (leq_trans _ low) // leq_min !geq_min leqnSn leqnn orbT.
move: high; rewrite !leq_max => /orP[|->]; last by rewrite orbT.
by rewrite leq_eqVlt => /orP[/eqP //|]; rewrite ltnS => ->.
Qed.

Lemma meets_prev kind f t : meets kind f t.+1 -> red_family t f -> meets kind f t.
Proof.
case/meetsP => w wn [e s] now; apply/meetsP; exists w => //; split => // u low high.
have [-> //|/eqP ne] := eqVneq u t; apply: s.
  move: low; rewrite !geq_min => /orP[|->]; last by rewrite orbT.
  by rewrite leq_eqVlt => /orP[/eqP e'|->] //; case: ne.
by rewrite (leq_trans high) // geq_max !leq_max leqnSn leqnn orbT.
Qed.

(* Families of which a paid episode contains time t: a word of the family moves while it stays red. *)
Definition paid t := [set f | meets (word_of^~ f) f t].

Lemma paidP t f :
  reflect (exists2 w, w < n & word_of w f /\ forall u, minn t w.+1 <= u -> u <= maxn t w.+1 -> red_family u f)
    (f \in paid t).
Proof. by rewrite inE; exact: meetsP. Qed.

Lemma paid_red t f : f \in paid t -> red_family t f.
Proof. by rewrite inE; exact: meets_red. Qed.

Lemma paid_next t f : f \in paid t -> red_family t.+1 f -> f \in paid t.+1.
Proof. by rewrite !inE; exact: meets_next. Qed.

Lemma paid_prev t f : f \in paid t.+1 -> red_family t f -> f \in paid t.
Proof. by rewrite !inE; exact: meets_prev. Qed.

(* Episodes that count, whichever: of those that count together at most one starts at a time, with a pebble. *)
Section Counted.

Variable R : nat -> {set F}.
Hypothesis counted_red : forall t f, f \in R t -> red_family t f.
Hypothesis counted_prev : forall t f, f \in R t.+1 -> red_family t f -> f \in R t.

Lemma start_places t f : t < n -> f \in R t.+1 -> f \notin R t ->
  exists v, [/\ family v = Some f, v \notin red_at t & mv t = Read v \/ mv t = Compute v].
Proof.
move=> tn next now; have /exists_inP[v v_red /eqP e] := counted_red next.
have v_new : v \notin red_at t.
  by apply: contra now => v_now; apply: (counted_prev next); exact: red_familyI e.
by exists v; split => //; exact: placed.
Qed.

Lemma one_counted t : t < n -> #|R t.+1 :\: R t| <= 1.
Proof.
move=> tn; apply/card_le1_eqP => f f'; rewrite !in_setD => /andP[a b] /andP[a' b'].
have [v [e _ m]] := start_places tn b a; have [v' [e' _ m']] := start_places tn b' a'.
have ev : v = v' by case: m m' => -> [] [].
by move: e'; rewrite -ev e => -[].
Qed.

Lemma counted_few t : #|R t| <= #|red_at t|.
Proof.
have inj : injective (@Some F) by move=> ? ? [].
rewrite -(card_imset _ inj); apply: leq_trans (leq_imset_card family _).
apply/subset_leq_card/subsetP => _ /imsetP[f /counted_red /exists_inP[v vt /eqP e] ->].
by rewrite -e imset_f.
Qed.

Lemma counted_needs_a_pebble t : t < n -> starts R t -> #|R t| < M.
Proof.
move=> tn /set0Pn[f]; rewrite in_setD => /andP[now next].
have [v [_ v_new m]] := start_places tn next now.
have := few_red tn; rewrite (red_after_placed tn m) cardsU1 v_new add1n.
exact: leq_ltn_trans (counted_few t).
Qed.

Lemma counted_0 : R 0 = set0.
Proof.
apply/setP => f; rewrite [RHS]inE; apply/negP => /counted_red /exists_inP[v].
by rewrite red_0 inE.
Qed.

End Counted.

Definition one_start := one_counted paid_red paid_prev.
Definition paid_few := counted_few paid_red.
Definition start_needs_a_pebble := counted_needs_a_pebble paid_red paid_prev.
Definition paid_0 := counted_0 paid_red.

(* Each paid episode has a word of its own. *)
Definition pays (t w : nat) :=
  [exists f, [&& f \in paid t.+1, f \notin paid t, word_of w f, t <= w & stays f t.+1 w.+1]].

Lemma start_pays t : t < n -> starts paid t -> exists w : 'I_n, pays t w.
Proof.
move=> tn /set0Pn[f]; rewrite in_setD => /andP[now next].
have /paidP[w wn [e s]] := next; exists (Ordinal wn); apply/existsP; exists f.
have tw : t <= w.
  rewrite leqNgt; apply/negP => wt; case/negP: now; apply: (paid_prev next); apply: s.
    by rewrite geq_min wt orbT.
  by rewrite leq_max leqnSn.
rewrite next now e tw /=; apply/staysP => u low high; apply: s.
  by rewrite geq_min low.
by rewrite leq_max high orbT.
Qed.

Lemma pays_once t t' w : pays t w -> pays t' w -> t <= t'.
Proof.
case/existsP => f /and5P[next now e tw s] /existsP[f' /and5P[next' now' e' tw' s']].
have ef : f = f' by move: e e'; rewrite /word_of; case: (mv w) => // v /eqP-> /eqP[].
rewrite leqNgt; apply/negP => less; case/negP: now; apply: (paid_prev next).
by rewrite ef; move/staysP: s'; apply => //; exact: leqW.
Qed.

Theorem paid_episodes_move_words : number_of_starts paid 0 n <= io g.
Proof.
pose h (t : 'I_n) := odflt t [pick w : 'I_n | pays t w].
have hP (t : 'I_n) : starts paid t -> pays t (h t).
  move=> /(start_pays (ltn_ord t))[w pw]; rewrite /h; case: pickP => [//|none].
  by move: (none w); rewrite pw.
have -> : number_of_starts paid 0 n = #|[set t : 'I_n | starts paid t]|.
  rewrite /number_of_starts big_mkord -sum1_card [RHS]big_mkcond /=.
  by apply: eq_bigr => t _; rewrite inE; case: (starts paid t).
have -> : io g = #|[set t : 'I_n | is_word (mv t)]|.
  rewrite /io -sum1_count (big_nth x0) big_mkord -sum1_card.
  by apply: eq_bigl => t; rewrite inE.
rewrite -(@card_in_imset _ _ h) => [|t t']; last first.
  rewrite !inE => /hP p /hP p' e; apply/val_inj/eqP; rewrite eqn_leq.
  by rewrite (pays_once p) ?e // (pays_once p') // -e.
apply/subset_leq_card/subsetP => _ /imsetP[t + ->]; rewrite !inE => /hP/existsP[f /and5P[_ _ + _ _]].
by rewrite /word_of; case: (mv (h t)).
Qed.

(* A vertex that is red in a paid episode was computed in one, unless it is an input; then it was read. *)
Lemma paid_input t v f : t <= n -> family v = Some f -> v \in inputs G -> v \in red_at t -> f \in paid t.
Proof.
move=> + e v_in; elim: t => [|t IH] tn v_red; first by rewrite red_0 inE in v_red.
case: (boolP (v \in red_at t)) => [before|new].
  by apply: paid_next (IH (ltnW tn) before) _; exact: red_familyI e.
have := allowed_at tn; have [m|m] := placed tn v_red new; rewrite /allowed m ?v_in //= => _.
apply/paidP; exists t => //; split; first by rewrite /word_of m e.
move=> u; rewrite minnn maxnn => low high; have -> : u = t.+1 by apply/eqP; rewrite eqn_leq high.
exact: red_familyI e.
Qed.

Lemma paid_write w v f : w < n -> mv w = Write v -> family v = Some f -> v \in red_at w /\ f \in paid w.
Proof.
move=> wn m e; have := allowed_at wn; rewrite /allowed m => /andP[v_red _]; split => //.
apply/paidP; exists w => //; split; first by rewrite /word_of m e.
move=> u; rewrite (minn_idPl (leqnSn w)) (maxn_idPr (leqnSn w)) => low high.
apply: red_familyI e; move: low; rewrite leq_eqVlt => /orP[/eqP<- //|w_u].
have -> : u = w.+1 by apply/eqP; rewrite eqn_leq high.
by rewrite at_next // m.
Qed.

Definition computes t v := if mv t is Compute u then u == v else false.

Lemma paid_computed t v f : t <= n -> family v = Some f -> v \notin inputs G -> v \in red_at t -> f \in paid t ->
  exists2 u, u < t & computes u v /\ f \in paid u.+1.
Proof.
move=> + e out; have [k] := ubnP t; elim: k t => // k IH [|t]; rewrite ltnS => tk tn v_red f_paid.
  by rewrite red_0 inE in v_red.
case: (boolP (v \in red_at t)) => [before|new].
  have [|u ut [c p]] := IH t tk (ltnW tn) before; first by apply: (paid_prev f_paid); exact: red_familyI e.
  by exists u; rewrite ?ltnS ?(ltnW ut).
have ok := allowed_at tn; have [m|m] := placed tn v_red new; last first.
  by exists t => //; split => //; rewrite /computes m.
move: ok; rewrite /allowed m => /andP[/= v_blue _].
have [v_in|[w wt mw]] := blue_written (ltnW tn) v_blue; first by rewrite v_in in out.
have wn : w < n := ltn_trans wt tn.
have [w_red w_paid] := paid_write wn mw e.
have [u uw [c p]] := IH w (ltn_trans wt tk) (ltnW wn) w_red w_paid.
by exists u; rewrite ?ltnS ?(leq_trans (ltnW uw) (ltnW wt)).
Qed.

(* A product is useful where it is computed in a paid episode; each product on a way to an output is, some time. *)
Definition useful t v f := computes t v && (f \in paid t.+1).

Lemma useful_output v f : v \in outputs G -> v \notin inputs G -> family v = Some f -> exists2 t, t < n & useful t v f.
Proof.
move=> v_out out e; have /andP[_ /subsetP /(_ v v_out) v_blue] := complete_g.
have [v_in|[w wn m]] := blue_written (leqnn n) v_blue; first by rewrite v_in in out.
have [w_red w_paid] := paid_write wn m e.
have [t tw [c p]] := paid_computed (ltnW wn) e out w_red w_paid.
by exists t; rewrite ?(ltn_trans tw) // /useful c.
Qed.

Lemma useful_red t v f u : t < n -> useful t v f -> u \in pred G v -> u \in red_at t.
Proof.
move=> tn /andP[c _] uv; have := allowed_at tn; move: c; rewrite /computes /allowed.
by case: (mv t) => // x /eqP-> /andP[/andP[_ /subsetP/(_ u uv)]].
Qed.

Lemma useful_before t v f u : t < n -> useful t v f -> u \in pred G v -> family u = Some f -> u \notin inputs G ->
  exists2 s, s < n & useful s u f.
Proof.
move=> tn v_useful uv e out; have u_red := useful_red tn v_useful uv.
have /andP[_ f_paid] := v_useful.
have now : f \in paid t by apply: (paid_prev f_paid); exact: red_familyI e.
have [s st [c p]] := paid_computed (ltnW tn) e out u_red now.
by exists s; rewrite ?(ltn_trans st) // /useful c.
Qed.

Definition in_tree f := [rel u v | [&& u \in pred G v, family u == Some f & u \notin inputs G]].

Lemma useful_along f v p : path (in_tree f) v p -> (exists2 t, t < n & useful t (last v p) f) ->
  exists2 t, t < n & useful t v f.
Proof.
elim: p v => [|u p IH] v //= /andP[/and3P[uv /eqP e out] way] later; have [t tn t_useful] := IH u way later.
exact: useful_before tn t_useful uv e out.
Qed.

Theorem useful_path f v p : path (in_tree f) v p -> last v p \in outputs G -> last v p \notin inputs G ->
  family (last v p) = Some f -> exists2 t, t < n & useful t v f.
Proof. by move=> way o i e; apply: useful_along way _; exact: useful_output. Qed.

(* In an episode that is not paid, what is red was computed, and so was all of the tree that it comes from. *)
Lemma unpaid_computed t v f : t <= n -> family v = Some f -> v \in red_at t -> f \notin paid t ->
  exists2 u, u < t & [/\ computes u v, f \notin paid u.+1 & forall x, u < x -> x <= t -> red_family x f].
Proof.
move=> + e; elim: t => [|t IH] tn v_red unpaid; first by rewrite red_0 inE in v_red.
have now := red_familyI v_red e.
case: (boolP (v \in red_at t)) => [before|new].
  have [|u ut [c p s]] := IH (ltnW tn) before; first by apply: contra unpaid => p; exact: paid_next p now.
  exists u; rewrite ?ltnS ?(ltnW ut) //; split => // x ux.
  by rewrite leq_eqVlt => /orP[/eqP->//|]; rewrite ltnS; exact: s.
have [m|m] := placed tn v_red new.
  case/negP: unpaid; apply/paidP; exists t => //; split; first by rewrite /word_of m e.
  by move=> u; rewrite minnn maxnn => low high; have -> : u = t.+1 by apply/eqP; rewrite eqn_leq high.
exists t => //; split; rewrite ?/computes ?m // => x tx xt.
by have -> : x = t.+1 by apply/eqP; rewrite eqn_leq xt.
Qed.

Theorem free_episode_makes_tree t v p f : t <= n -> path (in_tree f) v p -> family (last v p) = Some f ->
  family v = Some f -> last v p \in red_at t -> f \notin paid t ->
  exists2 u, u < t & [/\ computes u v, f \notin paid u.+1 & forall x, u < x -> x <= t -> red_family x f].
Proof.
elim: p v => [|w p IH] v tn /=; first by move=> _ e _; exact: unpaid_computed.
move=> /andP[/and3P[vw /eqP e out] way] e' _ last_red unpaid.
have ew : family w = Some f by case: p way e' {IH last_red} => [|? ? /= /andP[/and3P[_ /eqP]]].
have [u ut [c unpaid_u stay]] := IH w tn way e' ew last_red unpaid.
have un : u < n := leq_trans ut tn.
have v_red : v \in red_at u.
  by have := allowed_at un; move: c; rewrite /computes /allowed; case: (mv u) => // y /eqP-> /andP[/andP[_ /subsetP/(_ v vw)]].
have now := red_familyI v_red e.
have unpaid_before : f \notin paid u.
  by apply: contra unpaid_u => before; apply: (paid_next before); exact: stay.
have [y yu [cy unpaid_y stay_y]] := unpaid_computed (ltnW un) e v_red unpaid_before.
exists y; first exact: ltn_trans yu ut.
by split => // x yx xt; case: (leqP x u) => [|ux]; [exact: stay_y | exact: stay].
Qed.

End OneGame.

End Game.
