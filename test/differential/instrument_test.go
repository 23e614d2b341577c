// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A seed and a number always give the same input, whatever was drawn before.
func TestDrawIsReplayed(t *testing.T) {
	for _, s := range everySubject() {
		seen := map[string]bool{}
		wrong := 0
		for i := range 50 {
			one, two := s.draw(3, i), s.draw(3, i)
			if d := cmp.Diff(one.input(), two.input()); d != "" {
				t.Errorf("%s %d:\n%s", s.name(), i, d)
			}
			seen[one.input()] = true
			if one.wrong != "" {
				wrong++
			}
		}
		if len(seen) < 25 || wrong < 3 {
			t.Errorf("%s: %d different inputs of 50, %d with a value that is refused", s.name(), len(seen), wrong)
		}
	}
}

func TestKnownIsReadPrecisely(t *testing.T) {
	list, err := parseKnown("# about\nplugins: ptp\nwhen: \"mtu\":9\ndiffers: up x: \\d → 7\nbecause: it is so\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		plugin, input, line string
		want                bool
	}{
		{"ptp", `{"mtu":9}`, "up x: 1 → 7", true},
		{"bridge", `{"mtu":9}`, "up x: 1 → 7", false},
		{"ptp", `{"mtu":8}`, "up x: 1 → 7", false},
		{"ptp", `{"mtu":9}`, "up x: 1 → 77", false},
		{"ptp", `{"mtu":9}`, "and up x: 1 → 7", false},
	} {
		if got := lists(list, test.plugin, test.input, test.line); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
	if list[0].seen[0] != 1 {
		t.Errorf("matched %d times", list[0].seen[0])
	}
	for _, broken := range []string{"plugins: x\ndiffers: y\n", "differs: [\nplugins: x\nbecause: y\n", "what: x\n"} {
		if _, err := parseKnown(broken); err == nil || !strings.HasPrefix(err.Error(), "known.txt:1") {
			t.Errorf("%q: %v", broken, err)
		}
	}
}

// Names that each side may choose become equal. Names from the input do not change.
func TestNormal(t *testing.T) {
	macs := []mac{{"0a:00:00:00:00:01", "host:vethaaaaaaaa"}, {"0a:00:00:00:00:01", "host:br0"}, {"0a:00:00:00:00:09", "container:eth0"}}
	got := normal(view{"up link vethaaaaaaaa mac": "0a:00:00:00:00:01", "up link eth0 mac": "0a:00:00:00:00:09"}, macs, `{"mac":"0A:00:00:00:00:09"}`)
	want := view{"up link veth<1> mac": "mac(host:veth<1>)", "up link eth0 mac": "0a:00:00:00:00:09"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestDifferences(t *testing.T) {
	ref := view{"ADD": "done", "up host link a type": "veth", "up host link a mtu": "1", "up host sysctl net/conf/a/x": "1", "same": "1", "DEL": "refused 999: no such thing", "CHECK": "refused 1: old", "y": "1"}
	ours := view{"ADD": "done", "same": "1", "DEL": "refused 7: other words", "CHECK": "refused 1: new", "y": "2", "z": "3"}
	want := []string{"CHECK: refused 1: old → refused 1: new", "up host link a type: veth → nothing", "y: 1 → 2", "z: nothing → 3"}
	if d := cmp.Diff(want, differences(ref, ours)); d != "" {
		t.Error(d)
	}
	ours["ADD"] = "refused 1: because"
	if d := cmp.Diff([]string{"ADD: done → refused 1: because"}, differences(ref, ours)); d != "" {
		t.Error(d)
	}
}
