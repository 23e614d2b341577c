// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"regexp"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// Verdict is what came out of a rule.
type Verdict string

// The verdicts.
const (
	Passed        Verdict = "passed"
	Failed        Verdict = "failed"
	NotApplicable Verdict = "not applicable"
)

// Outcome is what came out of one rule for one plugin at one version of the specification.
type Outcome struct {
	Rule    Rule    `json:"rule"`
	Version string  `json:"version"`
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why,omitempty"`  // what is wrong, or why the rule does not apply
	Line    string  `json:"line,omitempty"` // of the script, that failed
	Steps   []Step  `json:"steps,omitempty"`

	Milliseconds int64 `json:"milliseconds"`
}

// Options say what Check does. The zero value is all rules.
type Options struct {
	Only   []string      // names of rules
	Settle time.Duration // how long the kernel may take to finish after a call; 0 is two seconds
	Limit  time.Duration // how long a call may take; 0 is ten seconds
	Env    []string      // K=V entries added to the plugin's environment
}

// Findings are what Check found.
type Findings struct {
	// Stands lists what the node has after the first ADD and DEL. The suite takes it for the network's or the node's, as
	// a bridge or a chain for all containers, and the rules do not count it. What every ADD leaves, they find.
	Stands   []string  `json:"stands,omitempty"`
	Outcomes []Outcome `json:"outcomes"`
	// FirstADD is how long the first ADD took.
	FirstADD time.Duration `json:"firstADDNanoseconds"`
}

// Check runs the rules for a program without `go test`. The plugin is found in path, which is also its CNI_PATH. The
// process must have a network, and an empty /run and /var/lib, of its own.
func Check(s Subject, path []string, o Options) (f Findings, err error) {
	rules, err := Rules(Contract())
	if err != nil {
		return f, err
	}
	suite := Suite{
		Subject: s, Path: path, Invoker: &invoke.Exec{Stderr: nowhere{}, Env: o.Env},
		dirs: everywhere(), only: o.Only, settle: 2 * time.Second, most: 10 * time.Second,
	}
	if o.Settle > 0 {
		suite.settle = o.Settle
	}
	if o.Limit > 0 {
		suite.most = o.Limit
	}
	root := &trial{done: func(t *trial) {
		f.Outcomes = append(f.Outcomes, t.outcome(&s, rules))
	}}
	root.sub("", func(t tester) {
		f.Stands, f.FirstADD = suite.remains(t)
		suite.run(t)
	})
	return f, nil
}

// remains makes a first ADD and DEL, and returns what they leave, and how long the ADD took. Whether they succeed is for the
// rules.
func (s *Suite) remains(t tester) (left []string, took time.Duration) {
	s.Subject.need(t)
	w := newWorld(t, s, s.Subject.newest())
	defer w.Close()
	for _, verb := range []spec.Verb{spec.Add, spec.Del} {
		_, _ = w.callFirst(verb)
		if verb == spec.Add {
			took = w.diary.took
		}
	}
	now, err := w.settle()
	if err != nil {
		t.Fatal(err)
	}
	return now, took
}

// nowhere drops the plugin's standard error, which each call has anyway.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// outcome reads what a trial found from its log.
func (t *trial) outcome(s *Subject, rules []Rule) Outcome {
	version, name, older := strings.Cut(t.name, "/")
	if !older || strings.HasPrefix(t.name, "refused ") {
		version, name = s.newest(), t.name
	}
	out := Outcome{Rule: ruleOf(name, rules), Version: version, Verdict: Passed, Milliseconds: t.took.Milliseconds()}
	log := strings.TrimSpace(t.log.String())
	switch {
	case t.failed:
		out.Verdict = Failed
		out.Why, out.Line = failure(log)
	case t.skipped:
		out.Verdict = NotApplicable
		out.Why = strings.TrimPrefix(t.why, "patchbay-skip: "+t.name+": ") // which nettest.Need says
	}
	if t.world != nil {
		out.Steps = t.world.diary.steps
	}
	return out
}

// failure cuts the message of a failure, and the line that failed, out of testscript's log.
func failure(log string) (why, line string) {
	at := regexp.MustCompile(`(?m)^FAIL: [^\n]*?\.txtar:\d+: `).FindStringIndex(log)
	if at == nil {
		return log, ""
	}
	if begin := strings.LastIndex(log[:at[0]], "\n> "); begin >= 0 {
		line, _, _ = strings.Cut(log[begin+3:], "\n")
	}
	return strings.TrimSpace(log[at[1]:]), line
}

// ruleOf returns the rule of a trial. A configuration that the plugin must refuse is a rule of the subject.
func ruleOf(name string, rules []Rule) Rule {
	for _, r := range rules {
		if r.Name == name {
			return r
		}
	}
	about, ok := strings.CutPrefix(name, "refused ")
	if !ok {
		return Rule{Name: cmp.Or(name, "all"), Level: Must, Says: "The plugin can be tested here.", Sources: []string{"the suite"}}
	}
	return Rule{
		Name: name, Level: Own, Says: "The plugin refuses a wrong configuration before any work: " + about + ".",
		Sources: []string{`the subject, "refused"; SPEC 1.1.0, section 5, Error: code 7, "If some validations on network configs do not pass, this error will be raised"`},
	}
}
