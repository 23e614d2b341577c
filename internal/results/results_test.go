// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package results_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/results"
)

func TestFile(t *testing.T) {
	data, err := results.File{Network: "a-b", ContainerID: "c", IfName: "eth0"}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	f, ok, err := results.Decode(data)
	if !ok || err != nil || !f.IsOf("a-b", "c", "eth0") || f.IsOf("a", "b-c", "eth0") {
		t.Errorf("%s: %+v, %v, %v", data, f, ok, err)
	}
	if results.Name("a-b", "c", "eth0") != results.Name("a", "b-c", "eth0") {
		t.Error("names do not clash, so IsOf is not needed")
	}
	for text, broken := range map[string]bool{`{"cniVersion":"0.4.0"}`: false, `{"kind":"cniCacheV1"`: true, "": true} {
		if _, ok, err := results.Decode([]byte(text)); ok || broken != (err != nil) {
			t.Errorf("%s: %v, %v", text, ok, err)
		}
	}
}

func TestPlace(t *testing.T) {
	const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"},{"name":"eth0","sandbox":"/run/netns/b"}]}`
	for _, c := range []struct{ netNS, result, want string }{
		{"/run/netns/a", result, "/run/netns/a"}, {"", result, "/run/netns/b"}, {"", "", ""}, {"", "null", ""}, {"", "{", ""}, {"", `{"cniVersion":"0.1.0"}`, ""},
	} {
		f := results.File{IfName: "eth0", NetNS: c.netNS, Result: []byte(c.result)}
		if got := f.Place(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// The temporary file is no result, and a GC finds it by the pattern.
func TestTemp(t *testing.T) {
	temp := results.Temp(results.Path("/cni", "net", strings.Repeat("x", 300), "eth0"))
	if ok, err := filepath.Match(results.Temps("/cni"), temp); !ok || err != nil || filepath.Dir(temp) != "/cni" || len(temp) > 100 {
		t.Errorf("%s: %v, %v", temp, ok, err)
	}
}
