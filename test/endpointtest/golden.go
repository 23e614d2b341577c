// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpointtest

import (
	"encoding/json"
	"flag"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

var update = flag.Bool("update", false, "write the goldens")

// Compile is a plugin's pure part: the state and the result that it computes for a pair
// from a configuration and IPAM's answer (nil: none).
type Compile func(r *plugin.Request, pair *endpoint.Pair, ipam *spec.Result) (netstate.State, *spec.Result, error)

// Goldens compares a plugin's compile with the files of testdata/compile, each of which has
// the configuration, IPAM's answer, the state and the result as text.
func Goldens(t *testing.T, p *plugin.Plugin, compile Compile) {
	files, err := filepath.Glob("testdata/compile/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no goldens", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { golden(t, file, p, compile) })
	}
}

func golden(t *testing.T, file string, p *plugin.Plugin, compile Compile) {
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := txtar.Format(ar)
	part := map[string][]byte{}
	for _, f := range ar.Files {
		part[f.Name] = f.Data
	}
	state, result := compiled(t, p, part["conf"], part["ipam"], compile)
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

func compiled(t *testing.T, p *plugin.Plugin, conf, ipam []byte, compile Compile) (state, result []byte) {
	t.Helper()
	pair := &endpoint.Pair{
		Owner: "abcdefghijklmno", Host: "veth1", IfName: "eth0", NetNS: "/run/netns/c",
		HostMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
	}
	var addresses *spec.Result
	if len(ipam) > 0 {
		var err error
		if addresses, err = spec.ParseResult(ipam, spec.Current); err != nil {
			t.Fatal(err)
		}
	}
	r := &plugin.Request{Plugin: p, Call: &spec.Call{Config: conf, IfName: pair.IfName, NetNS: pair.NetNS}, Owner: pair.Owner}
	if _, err := r.Conf(); err != nil {
		t.Fatal(err)
	}
	s, made, err := compile(r, pair, addresses)
	if err != nil {
		return []byte(err.Error() + "\n"), nil
	}
	result, err = json.MarshalIndent(made, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return []byte(s.String()), append(result, '\n')
}
