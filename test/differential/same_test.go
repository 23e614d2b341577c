// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/spec"
)

// cases returns how many configurations a plugin gets. The second kernel is emulated, so a plugin
// gets fewer there. Most of those are for plugins that other kernels do not support.
func (s *subject) cases(t *testing.T) int {
	t.Helper()
	switch {
	case !testing.Short():
		return draw.Number(t, casesEnv, 4, 30)
	case s.needs == nil:
		return 2
	}
	return 10
}

// casesEnv names the number of cases in the environment.
const casesEnv = "PATCHBAY_DIFF_CASES"

// everySubject returns all subjects.
func everySubject() []*subject { return slices.Concat(subjects, chained, onMaster, moved) }

// thorough is a number of cases. In a run with so many, every listed difference must occur.
const thorough = 200

func TestSame(t *testing.T) {
	ref, ours, listed := reftest.Plugins(t), reftest.Ours(t), readKnown(t)
	seed, _ := draw.Seed(t)
	ran := map[string]bool{}
	for _, s := range everySubject() {
		t.Run(s.name(), func(t *testing.T) {
			for _, f := range s.needs {
				nettest.Need(t, f)
			}
			ran[s.plugin] = true
			for i := range s.cases(t) {
				t.Run(fmt.Sprint(i), func(t *testing.T) {
					d := s.draw(seed, i)
					for _, line := range compare(t, s, d, ref, ours) {
						if !lists(listed, s.plugin, d.input(), line) {
							t.Errorf("reference → ours: %s", line)
						}
					}
					if t.Failed() {
						t.Logf("%s=%d go test ./test/differential -run '%s'\ninput (wrong: %q): %s", draw.SeedEnv, seed, t.Name(), d.wrong, d.input())
					}
				})
			}
		})
	}
	if draw.Number(t, casesEnv, 0, 0) >= thorough && !t.Failed() {
		stale(t, listed, ran)
	}
}

// stale fails for entries whose difference no longer occurs. If this kernel cannot run a plugin of
// an entry, stale ignores the entry, because the other kernel tests it.
func stale(t *testing.T, listed []*known, ran map[string]bool) {
	t.Helper()
	for _, k := range listed {
		if k.plugins[0] != "all" && slices.ContainsFunc(k.plugins, func(p string) bool { return !ran[p] }) {
			continue
		}
		for i, times := range k.seen {
			if times == 0 && !k.rare[i] {
				t.Errorf("known.txt:%d: nothing differs like this any more: %v", k.line, k.differs[i])
			}
		}
	}
}

// TestReferenceIsItsEqual tests the test itself. A comparison of the reference with itself finds no
// difference.
func TestReferenceIsItsEqual(t *testing.T) {
	ref := reftest.Plugins(t)
	for _, s := range everySubject() {
		t.Run(s.name(), func(t *testing.T) {
			for _, f := range s.needs {
				nettest.Need(t, f)
			}
			for i := range draw.Number(t, "PATCHBAY_DIFF_EQUALS", 1, 2) {
				d := s.draw(2, i)
				for _, line := range compare(t, s, d, ref, ref) {
					t.Errorf("%s: %s", d.input(), line)
				}
			}
		})
	}
}

// compare runs a case on both sides and returns the differences, sorted.
func compare(t *testing.T, s *subject, d drawn, ref, ours string) []string {
	t.Helper()
	return differences(story(t, s, d, ref), story(t, s, d, ours))
}

// story runs the life of one attachment on a new node. It returns everything that can be observed.
func story(t *testing.T, s *subject, d drawn, dir string) (out view) {
	t.Helper()
	inWorld(t, dir, func(w *world) {
		v, prev, input := view{}, map[string]any(nil), d.input()
		d.conf = maps.Clone(d.conf)
		if s.prepare != nil {
			var err error
			if prev, err = s.prepare(w); err != nil {
				t.Errorf("prepare: %v", err)
				return
			}
		}
		input += fmt.Sprint(prev)
		if prev != nil && d.conf["prevResult"] == nil && !d.first {
			d.conf["prevResult"] = inVersion(prev, d.conf["cniVersion"])
		}
		result := w.record(v, d.call, spec.Add, "ADD")
		when := "up"
		if v["ADD"] != "done" {
			when = "after the refusal"
		}
		macs, err := w.look(v, when)
		if result != nil {
			d.conf["prevResult"] = result
			w.record(v, d.call, spec.Check, "CHECK")
		}
		w.record(v, d.call, spec.Del, "DEL")
		if err == nil && when == "up" {
			_, err = w.look(v, "down")
		}
		w.record(v, d.call, spec.Del, "second DEL")
		if err != nil {
			t.Errorf("look: %v", err)
		}
		out = normal(v, macs, input)
	})
	return out
}

// record calls a verb and adds its outcome to the view; it returns the result.
func (w *world) record(v view, c call, verb spec.Verb, what string) map[string]any {
	c.verb = verb
	a := w.run(c)
	if a.fail != nil {
		v.put(what, fmt.Sprintf("refused %d: %s", a.fail.Code, a.fail))
		return nil
	}
	v.put(what, "done")
	var result map[string]any
	if len(a.out) == 0 {
		return nil
	}
	if err := json.Unmarshal(a.out, &result); err != nil {
		v.put(what+" output", string(a.out))
		return nil
	}
	v.flatten(what+" result", result)
	return result
}

// inVersion converts a result of 1.1.0 to the prevResult that a runtime of an older version
// sends.
func inVersion(result map[string]any, version any) map[string]any {
	out := clone(result).(map[string]any)
	v, _ := version.(string)
	out["cniVersion"] = v
	legacy := obj{"cniVersion": v, "dns": out["dns"]}
	for _, ip := range out["ips"].([]any) {
		m, family := ip.(map[string]any), "4"
		if strings.Count(m["address"].(string), ":") > 1 {
			family = "6"
		}
		if strings.HasPrefix(v, "0.") {
			m["version"] = family
		}
		legacy["ip"+family] = obj{"ip": m["address"], "gateway": m["gateway"]}
	}
	if v == "" || v == "0.1.0" || v == "0.2.0" {
		return legacy
	}
	return out
}
