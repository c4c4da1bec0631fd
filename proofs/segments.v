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

(* The sum over the segments that begin at a and at the cuts, and what holds for each of them. *)
Fixpoint over_segments (h : nat -> nat -> nat) a cuts := if cuts is c :: more then h a c + over_segments h c more else h a n.
Fixpoint each_segment (h : nat -> nat -> bool) a cuts := if cuts is c :: more then [&& a < c, h a c & each_segment h c more] else h a n.

Definition fits x y := [&& x <= y, y <= n & #|reach x y| <= X].
Definition fresh x y := reach x y :\: R x.

Lemma subset_reach x y : x <= y -> R x \subset reach x y.
Proof. by move=> xy; exact: in_reach. Qed.

Lemma card_fresh x y : x <= y -> #|fresh x y| + #|R x| = #|reach x y|.
Proof. by move=> xy; rewrite addnC -(cardsID (R x) (reach x y)) (setIidPr (subset_reach xy)). Qed.

Lemma cut a : a <= n -> exists cuts, each_segment fits a cuts /\
  (0 < size cuts -> size cuts * (X.+1 - M) + M <= over_segments (fun x y => #|fresh x y|) a cuts + #|R a|).
Proof.
have [k] := ubnP (n - a); elim: k a => // k IH a; rewrite ltnS => le_k an.
case: (leqP #|reach a n| X) => [fit|more]; first by exists [::]; rewrite /= /fits an leqnn fit.
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
have full : X <= #|reach a b|.
  rewrite -ltnS; apply: leq_trans over _; rewrite reach_next //.
  have -> : reach a b :|: R b.+1 = reach a b :|: (R b.+1 :\: R b).
    apply/setP => f; rewrite !inE; case: (boolP (f \in R b)) => //= fb.
    by rewrite (subsetP (in_reach ab (leqnn b)) f fb).
  rewrite -[#|reach a b|.+1]addn1; apply: leq_trans (leq_card_setU _ _) _; apply: leq_add; [exact: leqnn | exact: one_at_a_time].
have less_ab : a < b.
  rewrite ltn_neqAle ab andbT; apply/eqP => e; move: full.
  by rewrite e reach_refl leqNgt (leq_trans red_b).
have [|cuts [fit many]] := IH b _ (ltnW cn).
  by apply: leq_trans le_k; apply: ltn_sub2l => //; exact: leq_trans less_ab (ltnW cn).
have at_b : 0 < over_segments (fun x y => #|fresh x y|) b cuts.
  have bn : b < n := cn; have /set0Pn[f] := b_starts; rewrite in_setD => /andP[now next].
  have fresh_b y : b < y -> y <= n -> 0 < #|fresh b y|.
    move=> b_y yn; apply/card_gt0P; exists f; rewrite in_setD now.
    exact: (subsetP (in_reach (leqnSn b) b_y)).
  case: cuts fit {many} => [|c rest] /=; first by move=> _; exact: fresh_b.
  by case/and3P => bc /and3P[_ c_n _] _; rewrite addn_gt0 fresh_b.
exists (b :: cuts); split => [|_]; first by rewrite /= less_ab /fits ab (ltnW cn) within.
have later : size cuts * (X.+1 - M) < over_segments (fun x y => #|fresh x y|) b cuts.
  case: (size cuts) many => // s /(_ isT) many.
  by rewrite -(ltn_add2r #|R b|); apply: leq_trans many; rewrite ltn_add2l.
rewrite /= addnAC card_fresh // mulSn -addnA [size cuts * _ + M]addnC addnA subnK ?(leqW enough) //.
by rewrite addSn -addnS; exact: leq_add full later.
Qed.

Lemma fresh_starts x y : x <= y -> y <= n -> #|fresh x y| <= number_of_starts x y.
Proof. by move=> xy yn; rewrite -(leq_add2r #|R x|) card_fresh // addnC; exact: few_within_reach. Qed.

Theorem segments a :
  a <= n ->
  exists s, #|evaluated a n| <= s.+1 * G /\ (0 < s -> s * (X.+1 - M) + M <= number_of_starts a n + #|R a|).
Proof.
move=> an; have [cuts [fit many]] := cut an; exists (size cuts).
have [few_made starts_] : #|evaluated a n| <= (size cuts).+1 * G /\
    over_segments (fun x y => #|fresh x y|) a cuts <= number_of_starts a n.
  elim: cuts a an fit {many} => [|c cuts IH] a an /=.
    by move=> /and3P[_ _ within]; rewrite mul1n; split; [exact: capacity | exact: fresh_starts].
  case/and3P => ac /and3P[_ cn within] fit; have [few_made starts_] := IH c cn fit; split.
    apply: leq_trans (subset_leq_card (evaluated_cat (ltnW ac) cn)) _.
    apply: leq_trans (leq_card_setU _ _) _; rewrite mulSn; apply: leq_add few_made; exact: capacity (ltnW ac) cn within.
  rewrite /number_of_starts (big_cat_nat _ _ _ (ltnW ac) cn) /=; apply: leq_add starts_; exact: fresh_starts (ltnW ac) cn.
by split => // /many many_; apply: leq_trans many_ _; rewrite leq_add2r.
Qed.

End Segments.

(* Section 2, (2): some starts are free, of trees that are then made again. *)
Section Free.

Variables (F P : finType) (R paid : nat -> {set F}) (n M X : nat) (made : nat -> {set P}).
Variables (D : {set P}) (trees : {set F}) (tree : P -> option F) (k G : nat).

Hypothesis paid_counts : forall t, paid t \subset R t.
Hypothesis one_at_a_time : forall t, t < n -> #|R t.+1 :\: R t| <= 1.
Hypothesis one_paid_at_a_time : forall t, t < n -> #|paid t.+1 :\: paid t| <= 1.
Hypothesis few : forall t, t <= n -> #|R t| <= M.
Hypothesis a_start_needs_a_pebble : forall t, t < n -> starts R t -> #|R t| < M.
Hypothesis enough : M <= X.
Hypothesis nothing_at_first : R 0 = set0.
Hypothesis capacity : forall a b, a <= b -> b <= n -> #|reach R a b| <= X -> #|evaluated made a b| <= G.
Hypothesis all_made : D \subset evaluated made 0 n.
Hypothesis trees_are_large : forall f, f \in trees -> #|[set p in D | tree p == Some f]| = k.

(* A start at t is paid, or free: then its episode makes its tree. *)
Definition free_start t f := [&& f \in R t.+1, f \notin R t & f \notin paid t.+1].
Hypothesis free_makes : forall t f, t < n -> free_start t f -> f \in trees /\
  forall p, tree p = Some f -> exists u, [/\ t <= u, u < n, p \in made u & forall v, t < v -> v <= u.+1 -> f \in R v].

Definition free x y := [set f in fresh R x y | [exists t : 'I_n, [&& x <= t, t < y & free_start t f]]].
Notation sum h := (over_segments n h).

Lemma freeP x y f : y <= n -> f \in free x y -> f \notin R x /\ exists t, [/\ x <= t, t < y & free_start t f].
Proof.
move=> yn; rewrite inE in_setD => /andP[/andP[now _] /existsP[t /and3P[xt ty st]]].
by split => //; exists t.
Qed.

Definition times a cuts p := sum (fun x y => p \in evaluated made x y) a cuts.
Definition frees a cuts f := sum (fun x y => f \in free x y) a cuts.
Definition owes a f p := exists u, [/\ a <= u, u < n, p \in made u & forall v, a <= v -> v <= u.+1 -> f \in R v].

Lemma made_in u x y p : x <= u -> u < y -> p \in made u -> p \in evaluated made x y.
Proof. by move=> xu uy pu; apply/bigcupP; exists (Ordinal uy). Qed.

Lemma each_free_start_makes cuts f p : tree p = Some f -> forall a, each_segment n (fits R n X) a cuts ->
  frees a cuts f <= times a cuts p /\ (owes a f p -> (frees a cuts f).+1 <= times a cuts p).
Proof.
move=> of_f; rewrite /frees /times; elim: cuts => [|c cuts IH] a /=.
  move=> _; split.
    case: (boolP (f \in free a n)) => // /(freeP (leqnn n))[_ [t [at_ tn st]]].
    have [_ /(_ p of_f)[u [tu un pu _]]] := free_makes tn st.
    by rewrite (made_in (leq_trans at_ tu) un pu).
  case=> u [au un pu stay]; rewrite (made_in au un pu).
  have now : f \in R a by apply: stay => //; exact: leqW.
  by rewrite inE in_setD now.
case/and3P => ac /and3P[_ cn _] fit; have [few_ more] := IH c fit; split.
  case: (boolP (f \in free a c)) => [/(freeP cn)[_ [t [at_ tc st]]]|_]; last by rewrite add0n (leq_trans few_) ?leq_addl.
  have [_ /(_ p of_f)[u [tu un pu stay]]] := free_makes (leq_trans tc cn) st.
  case: (ltnP u c) => [uc|cu]; first by rewrite (made_in (leq_trans at_ tu) uc pu) leq_add2l.
  rewrite add1n (leq_trans (more _)) ?leq_addl //; exists u; split => // v cv vu.
  by apply: stay => //; exact: leq_trans cv.
case=> u [au un pu stay].
have now : f \in R a by apply: stay => //; exact: leqW.
rewrite inE in_setD now /= add0n; case: (ltnP u c) => [uc|cu].
  by rewrite (made_in au uc pu) add1n ltnS.
rewrite (leq_trans (more _)) ?leq_addl //; exists u; split => // v cv vu.
by apply: stay => //; exact: leq_trans (ltnW ac) cv.
Qed.

Lemma sum_in (T : finType) (B A : {set T}) : \sum_(x in B) (x \in A) = #|B :&: A|.
Proof.
rewrite -sum1_card [RHS](eq_bigl (fun x => (x \in B) && (x \in A))); last by move=> x; rewrite inE.
by rewrite big_mkcondr /=; apply: eq_bigr => x _; case: (x \in A).
Qed.

Lemma sum_of_evaluated a cuts :
  \sum_(p in D) times a cuts p <= sum (fun x y => #|evaluated made x y|) a cuts.
Proof.
rewrite /times; elim: cuts a => [|c cuts IH] a /=; first by rewrite sum_in subset_leq_card ?subsetIr.
by rewrite big_split /= sum_in leq_add // subset_leq_card ?subsetIr.
Qed.

Lemma few_evaluated cuts a : each_segment n (fits R n X) a cuts ->
  sum (fun x y => #|evaluated made x y|) a cuts <= (size cuts).+1 * G.
Proof.
elim: cuts a => [|c cuts IH] a /=; first by case/and3P => an _ within; rewrite mul1n; exact: capacity.
by case/and3P => ac /and3P[_ cn within] fit; rewrite mulSn leq_add ?IH ?capacity // ltnW.
Qed.

Lemma sum_of_frees cuts a : each_segment n (fits R n X) a cuts ->
  sum (fun x y => #|free x y|) a cuts <= \sum_(f in trees) frees a cuts f.
Proof.
have some x y : y <= n -> trees :&: free x y = free x y.
  move=> yn; apply/setIidPr/subsetP => f /(freeP yn)[_ [t [_ ty st]]].
  by have [] := free_makes (leq_trans ty yn) st.
rewrite /frees; elim: cuts a => [|c cuts IH] a /=; first by rewrite sum_in some.
by case/and3P => _ /and3P[_ cn _] fit; rewrite big_split /= sum_in some // leq_add ?IH.
Qed.

Lemma evaluated_some_time cuts a p : a <= n -> each_segment n (fits R n X) a cuts ->
  p \in evaluated made a n -> 0 < times a cuts p.
Proof.
rewrite /times; elim: cuts a => [|c cuts IH] a an /=; first by move=> _ ->.
case/and3P => ac /and3P[_ cn _] fit /(subsetP (evaluated_cat made (ltnW ac) cn)); rewrite inE.
by case/orP => [->//|/(IH c cn fit) pos]; rewrite addn_gt0 pos orbT.
Qed.

Lemma fresh_start x y f : f \in fresh R x y -> exists t, [/\ x <= t, t < y, f \in R t.+1 & f \notin R t].
Proof.
rewrite in_setD => /andP[before /bigcupP[t xt now]].
have ex : exists u, (x <= u) && (f \in R u) by exists t; rewrite xt.
case: (ex_minnP ex) => u /andP[xu fu] least.
case: u => [|u] in xu fu least *; first by move: xu before; rewrite leqn0 => /eqP->; rewrite fu.
have xu' : x <= u by move: xu; rewrite leq_eqVlt => /orP[/eqP e|//]; rewrite e fu in before.
exists u; split => //; first by rewrite -ltnS (leq_trans _ (ltn_ord t)) // ltnS least // xt.
by apply/negP => fu'; have := least u; rewrite xu' fu' ltnn => /(_ isT).
Qed.

Lemma few_united (A : nat -> {set F}) x y : #|\bigcup_(t < y | x <= t) A t| <= \sum_(x <= t < y) #|A t|.
Proof.
rewrite big_geq_mkord; elim/big_rec2: _ => [|t m B _ le]; first by rewrite cards0.
by apply: leq_trans (leq_card_setU _ _) _; rewrite leq_add2l.
Qed.

Lemma fresh_is_paid x y : x <= y -> y <= n -> #|fresh R x y| <= number_of_starts paid x y + #|free x y|.
Proof.
move=> xy yn; rewrite -(cardsID (free x y) (fresh R x y)) addnC; apply: leq_add; last exact/subset_leq_card/subsetIr.
have sub : fresh R x y :\: free x y \subset \bigcup_(t < y | x <= t) (paid t.+1 :\: paid t).
  apply/subsetP => f; rewrite in_setD => /andP[not_free new]; have [t [xt ty now before]] := fresh_start new.
  apply/bigcupP; exists (Ordinal ty) => //; rewrite in_setD (contra (subsetP (paid_counts t) f)) //=.
  apply/negPn/negP => unpaid; case/negP: not_free; rewrite inE new /=; apply/existsP.
  have tn : t < n := leq_trans ty yn.
  by exists (Ordinal tn); rewrite /= xt ty /free_start now before unpaid.
apply: leq_trans (subset_leq_card sub) _; apply: leq_trans (few_united (fun t => paid t.+1 :\: paid t) x y) _.
rewrite /number_of_starts big_nat_cond [X in _ <= X]big_nat_cond; apply: leq_sum => t /andP[/andP[_ ty] _].
case: (boolP (starts paid t)) => [_|]; first exact: one_paid_at_a_time (leq_trans ty yn).
by rewrite negbK => /eqP->; rewrite cards0.
Qed.

Lemma all_fresh cuts a : a <= n -> each_segment n (fits R n X) a cuts ->
  sum (fun x y => #|fresh R x y|) a cuts <= number_of_starts paid a n + sum (fun x y => #|free x y|) a cuts.
Proof.
elim: cuts a => [|c cuts IH] a an /=; first by move=> _; exact: fresh_is_paid.
case/and3P => ac /and3P[_ cn _] fit; rewrite /number_of_starts (big_cat_nat _ _ _ (ltnW ac) cn) /=.
rewrite addnACA; apply: leq_add; [exact: fresh_is_paid (ltnW ac) cn | exact: IH c cn fit].
Qed.

(* kappa free starts of trees with k products each. *)
Theorem free_starts : exists s kappa,
  [/\ 0 < s -> s * (X.+1 - M) + M <= number_of_starts paid 0 n + kappa,
      s = 0 -> kappa <= #|trees| /\ #|reach R 0 n| <= number_of_starts paid 0 n + kappa,
      k * kappa + #|[set p in D | tree p == None]| <= s.+1 * G & #|D| <= s.+1 * G].
Proof.
have [cuts [fit many]] := cut one_at_a_time few a_start_needs_a_pebble enough (leq0n n).
exists (size cuts), (sum (fun x y => #|free x y|) 0 cuts); rewrite nothing_at_first cards0 addn0 in many.
have fresh_ := all_fresh (leq0n n) fit.
have evaluated_ := leq_trans (sum_of_evaluated 0 cuts) (few_evaluated fit).
have once p : p \in D -> 0 < times 0 cuts p.
  by move=> /(subsetP all_made); exact: evaluated_some_time fit.
split.
- by move=> /many /leq_trans; apply.
- case: cuts fit fresh_ {many evaluated_ once} => // fit fresh_ _; split.
    apply/subset_leq_card/subsetP => f /(freeP (leqnn n))[_ [t [_ tn st]]].
    by have [] := free_makes tn st.
  by apply: leq_trans fresh_; rewrite /= -(card_fresh R (leq0n n)) nothing_at_first cards0 addn0.
- apply: leq_trans evaluated_; rewrite addnC.
  apply: leq_trans (leq_add (leqnn _) (leq_mul (leqnn k) (sum_of_frees fit))) _.
  rewrite big_distrr /= (eq_bigr (fun f => \sum_(p in D | tree p == Some f) frees 0 cuts f)); last first.
    move=> f f_tree; rewrite sum_nat_const -(trees_are_large f_tree); congr (_ * _).
    by apply: eq_card => p; rewrite !inE.
  rewrite (exchange_big_dep (mem D)) /=; last by move=> f p _ /andP[].
  rewrite -sum1_card big_mkcond /= [X in X + _](eq_bigr (fun p => (p \in D) * (tree p == None))); last first.
    by move=> p _; rewrite inE; case: (p \in D); case: (tree p == None).
  rewrite [X in X + _](bigID (mem D)) /= [X in _ + X + _]big1 ?addn0; last by move=> p /negbTE->.
  rewrite -big_split /=; apply: leq_sum => p pD; rewrite pD mul1n.
  case e : (tree p) => [f0|] /=; last by rewrite big_pred0 ?addn0 ?once // => f; rewrite andbF.
  rewrite add0n; case: (boolP (f0 \in trees)) => [f0_tree|no].
    rewrite (big_pred1 f0) => [|f]; last first.
      by rewrite /= -[Some f0 == Some f]/(f0 == f) eq_sym andbC; case: eqP => //= ->.
    by have [] := each_free_start_makes e fit.
  by rewrite big_pred0 // => f /=; apply/negP => /andP[f_tree /eqP[ef]]; rewrite ef f_tree in no.
- apply: leq_trans evaluated_; rewrite -sum1_card; apply: leq_sum => p; exact: once.
Qed.

End Free.
