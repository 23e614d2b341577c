// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/patchbay-net/patchbay/spec"
)

// stubType is the name of an IPAM plugin of the suite.
const stubType = "conformance-ipam"

// stubProgram notes each call, and answers as the files beside it say.
const stubProgram = `#!/bin/sh
dir=${0%/*}
cat >"$dir/stdin.$CNI_COMMAND"
echo "$CNI_COMMAND ${CNI_CONTAINERID-} ${CNI_IFNAME-} ${CNI_NETNS-}" >>"$dir/calls"
if [ -e "$dir/fail.$CNI_COMMAND" ]; then
	printf '{"cniVersion":"1.0.0","code":11,"msg":"the IPAM plugin fails %s, as the suite wants"}' "$CNI_COMMAND"
	exit 1
fi
if [ "$CNI_COMMAND" = ADD ]; then
	cat "$dir/result"
fi
`

// stub is the IPAM plugin in its directory.
type stub struct{ dir string }

// newStub writes the program. It gives the first attachment the addresses that the subject's own IPAM plugin gives:
// others may not fit the network, whose bridge has its gateway's address already.
func (w *World) newStub() (*stub, error) {
	s, p := &stub{dir: w.t.TempDir()}, w.places["first"]
	for _, verb := range []spec.Verb{spec.Add, spec.Del} {
		if _, err := w.runFor(p, &request{verb: verb}); err != nil {
			return nil, fmt.Errorf("%s with its own IPAM plugin: %w", verb, err)
		}
	}
	answer := &spec.Result{}
	for _, ip := range p.Result.IPs {
		answer.IPs = append(answer.IPs, spec.IPConfig{Address: ip.Address, Gateway: ip.Gateway})
	}
	data, err := answer.Encode(w.version)
	if err != nil {
		return nil, err
	}
	w.diary.did("mkdir -p %s; cat >%s/%s <<'END'; chmod 755 %s/%s\n%sEND", s.dir, s.dir, stubType, s.dir, stubType, stubProgram)
	if err := os.WriteFile(filepath.Join(s.dir, stubType), []byte(stubProgram), 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(s.dir, "result")
	w.diary.did("printf '%%s' '%s' >%s", data, file)
	return s, os.WriteFile(file, data, 0o644)
}

// cmdDelegate puts the stub in the place of the subject's IPAM plugin, or lets the stub fail.
func cmdDelegate(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	switch {
	case !neg && len(args) == 0:
		var err error
		w.stub, err = w.newStub()
		ts.Check(err)
	case !neg && len(args) == 2 && args[0] == "fail" && w.stub != nil:
		file := filepath.Join(w.stub.dir, "fail."+args[1])
		w.diary.did("touch %s", file)
		ts.Check(os.WriteFile(file, nil, 0o644))
	default:
		ts.Fatalf("usage: delegate [fail VERB]")
	}
}

// cmdCalled checks that the stub got a call as the plugin got it: the same variables, and the whole configuration.
// "called none" checks that the stub was not called.
func cmdCalled(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	if neg || len(args) != 1 || w.stub == nil {
		ts.Fatalf("usage: called VERB|none")
	}
	data, err := os.ReadFile(filepath.Join(w.stub.dir, "calls"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		ts.Fatalf("read the calls: %v", err)
	}
	if args[0] == "none" {
		if len(data) > 0 {
			ts.Fatalf("the plugin called a program outside of CNI_PATH: %s", data)
		}
		return
	}
	ts.Check(w.stub.called(spec.Verb(args[0]), string(data), w.diary.last))
}

func (s *stub) called(verb spec.Verb, calls string, c *spec.Call) error {
	want := fmt.Sprintf("%s %s %s %s", verb, c.ContainerID, c.IfName, c.NetNS)
	if !slices.ContainsFunc(strings.Split(calls, "\n"), func(l string) bool { return strings.HasPrefix(l, string(verb)+" ") }) {
		return fmt.Errorf("the plugin did not call its IPAM plugin with %s", verb)
	}
	if !slices.Contains(strings.Split(calls, "\n"), want) {
		return fmt.Errorf("the IPAM plugin did not get the variables of the call, %q; it got\n%s", want, calls)
	}
	data, err := os.ReadFile(filepath.Join(s.dir, "stdin."+string(verb)))
	if err != nil {
		return err
	}
	var got, sent map[string]any
	if err := errors.Join(json.Unmarshal(data, &got), json.Unmarshal(c.Config, &sent)); err != nil {
		return fmt.Errorf("the IPAM plugin got no JSON object: %w: %q", err, data)
	}
	for key, value := range sent {
		if !reflect.DeepEqual(got[key], value) {
			return fmt.Errorf("the IPAM plugin did not get the complete configuration: %q is %v, and was %v", key, got[key], value)
		}
	}
	return nil
}
