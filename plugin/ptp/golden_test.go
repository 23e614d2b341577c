// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"encoding/json"
	"flag"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

var update = flag.Bool("update", false, "write the goldens")

// TestCompile holds what a configuration and IPAM's answer become, as text. Each
// file of testdata/compile has both, the state and the result.
func TestCompile(t *testing.T) {
	files, err := filepath.Glob("testdata/compile/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no goldens", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { golden(t, file) })
	}
}

func golden(t *testing.T, file string) {
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := txtar.Format(ar)
	part := map[string][]byte{}
	for _, f := range ar.Files {
		part[f.Name] = f.Data
	}
	state, result := compiled(t, part["conf"], part["ipam"])
	for i, f := range ar.Files {
		switch f.Name {
		case "state":
			ar.Files[i].Data = state
		case "result":
			ar.Files[i].Data = result
		}
	}
	got := txtar.Format(ar)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Error(d)
	}
}

func compiled(t *testing.T, conf, ipam []byte) (state, result []byte) {
	t.Helper()
	c, err := decode(&plugin.Request{Call: &spec.Call{Config: conf}})
	if err != nil {
		t.Fatal(err)
	}
	pair := &endpoint.Pair{
		Owner: "abcdefghijklmno", Host: "veth1", IfName: "eth0", NetNS: "/run/netns/c",
		HostMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
	}
	in := input{conf: c, pair: pair, network: "net", records: record.New("/nonexistent")}
	var addresses *spec.Result
	if len(ipam) > 0 {
		if addresses, err = spec.ParseResult(ipam, spec.Current); err != nil {
			t.Fatal(err)
		}
	}
	in.ipam = addresses
	s, r, err := compile(in)
	if err != nil {
		return []byte(err.Error() + "\n"), nil
	}
	result, err = json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return []byte(s.String()), append(result, '\n')
}
