// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/conformance"
)

// notJudged is an error that says why a rule does not apply.
type notJudged string

func (e notJudged) Error() string { return string(e) }

// Check plays the scenarios with the runtime, and judges the recordings by the rules. Without
// Options.Node, the process must have namespaces, and an empty /run and /var/lib, of its own.
func Check(o Options) (out []conformance.Outcome, err error) {
	closeOnExec()
	for i := range scenarios {
		sc := &scenarios[i]
		wanted := slices.ContainsFunc(rules, func(r rule) bool { return r.scenario == sc.name && o.wants(r.Name) })
		if !wanted {
			continue
		}
		more, err := o.judge(sc)
		if err != nil {
			return out, err
		}
		out = append(out, more...)
	}
	slices.SortStableFunc(out, func(a, b conformance.Outcome) int { return byRules(a.Rule.Name) - byRules(b.Rule.Name) })
	return out, nil
}

func byRules(name string) int {
	return slices.IndexFunc(rules, func(r rule) bool { return r.Name == name })
}

func (o *Options) wants(name string) bool { return o.Only == nil || slices.Contains(o.Only, name) }

// judge plays one scenario.
func (o *Options) judge(sc *scenario) (out []conformance.Outcome, err error) {
	begun := time.Now()
	var r *recording
	var steps []conformance.Step
	if !sc.hangs || o.Timeout > 0 {
		if r, steps, err = play(sc, *o); err != nil {
			return nil, err
		}
	}
	for i := range rules {
		if rule := &rules[i]; rule.scenario == sc.name && o.wants(rule.Name) {
			out = append(out, o.outcome(rule, r, steps))
		}
	}
	if len(out) > 0 {
		out[0].Milliseconds = time.Since(begun).Milliseconds() // the others read the same recording
	}
	return out, nil
}

// outcome judges by one rule.
func (o *Options) outcome(rule *rule, r *recording, steps []conformance.Step) conformance.Outcome {
	out := conformance.Outcome{Rule: rule.Rule, Version: o.newest(), Verdict: conformance.Passed, Steps: steps}
	err := o.applies(rule, r)
	if err == nil {
		err = rule.check(r)
	}
	var not notJudged
	switch {
	case errors.As(err, &not):
		out.Verdict, out.Why = conformance.NotApplicable, not.Error()
	case err != nil:
		out.Verdict, out.Why = conformance.Failed, err.Error()
	}
	return out
}

// applies returns why a rule cannot be judged.
func (o *Options) applies(rule *rule, r *recording) error {
	switch {
	case slices.Contains(o.Without, rule.needs):
		return notJudged("--without " + rule.needs)
	case o.newest() < rule.since:
		return notJudged("the runtime has no version " + rule.since)
	case r == nil:
		return notJudged("--timeout says how long the runtime waits for a plugin")
	case r.nth(rule.op).absent():
		return notJudged(fmt.Sprintf("the runtime has no operation %s (exit status %d)", r.nth(rule.op).do, Absent))
	}
	judged := r.done
	if rule.outcome { // its own operations it judges itself
		judged = r.done[:rule.op]
	}
	if d := failed(judged); d != nil {
		return notJudged("an operation did not end as it must, which another rule judges: " + d.why())
	}
	return nil
}
