// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

var update = flag.Bool("update", false, "write the goldens of testdata anew")

// results reads testdata/results.json, whose results are in the form of the newest version. test/libcni converts each
// through every pair of versions, and compares with what containernetworking/cni makes of it.
func results(tb testing.TB) map[string]json.RawMessage {
	tb.Helper()
	data, err := os.ReadFile("testdata/results.json")
	if err != nil {
		tb.Fatal(err)
	}
	var list map[string]json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		tb.Fatal(err)
	}
	return list
}

// TestGoldens pins our output in each version.
func TestGoldens(t *testing.T) {
	r, err := spec.ParseResult(results(t)["full"], "")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range spec.Versions() {
		got, err := r.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "result-"+v+".json")
		if *update {
			if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != strings.TrimSuffix(string(want), "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", v, got, want)
		}
		if v, err := spec.ParseResult(want, ""); err != nil || len(v.IPs) == 0 {
			t.Errorf("%s does not come back: %v", file, err)
		}
	}
}

func TestVersionsFrom(t *testing.T) {
	for min, want := range map[string]string{"0.1.0": "0.1.0", "0.4.0": "0.4.0", "0.3.5": "0.4.0", "1.1.0": "1.1.0"} {
		if got := spec.VersionsFrom(min); got[0] != want || got[len(got)-1] != spec.Current {
			t.Errorf("from %s: %v", min, got)
		}
	}
	if got := spec.VersionsFrom("9.0.0"); len(got) > 0 {
		t.Errorf("from 9.0.0: %v", got)
	}
}
