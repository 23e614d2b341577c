// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package libcni_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/patchbay-net/patchbay/spec"
)

// results reads the results that are converted, in the form of the newest version.
func results(t *testing.T) map[string]json.RawMessage {
	t.Helper()
	data, err := os.ReadFile("../../spec/testdata/results.json")
	if err != nil {
		t.Fatal(err)
	}
	var list map[string]json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestConvertLikeUpstream converts every result through every pair of versions, once with our
// code and once with containernetworking/cni. It compares the JSON and the errors.
func TestConvertLikeUpstream(t *testing.T) {
	for name, data := range results(t) {
		for _, from := range spec.Versions() {
			start, err := theirs(data, from)
			if err != nil {
				sameError(t, name, "1.1.0", from, string(data), err)
				continue
			}
			for _, to := range spec.Versions() {
				want, err := theirs(start, to)
				if err != nil {
					sameError(t, name, from, to, string(start), err)
					continue
				}
				got, err := ours(start, to)
				if err != nil {
					t.Errorf("%s: %s to %s: %v", name, from, to, err)
					continue
				}
				if !sameJSON(t, got, want) {
					t.Errorf("%s: %s to %s:\nours     %s\nupstream %s", name, from, to, got, want)
				}
				readable(t, got, to)
			}
		}
	}
}

func theirs(data []byte, to string) ([]byte, error) {
	r, err := create.CreateFromBytes(data)
	if err != nil {
		return nil, err
	}
	r, err = r.GetAsVersion(to)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = r.PrintTo(&b)
	return b.Bytes(), err
}

func ours(data []byte, to string) ([]byte, error) {
	r, err := spec.ParseResult(data, "")
	if err != nil {
		return nil, err
	}
	return r.Encode(to)
}

// sameError checks that we refuse what upstream refuses, with upstream's texts.
func sameError(t *testing.T, name, from, to, data string, want error) {
	t.Helper()
	_, err := ours([]byte(data), to)
	if err == nil || !strings.HasPrefix(err.Error(), want.Error()) {
		t.Errorf("%s: %s to %s: %v, upstream says %v", name, from, to, err, want)
	}
}

// readable checks that upstream can read our output and writes the same bytes again.
func readable(t *testing.T, data []byte, v string) {
	t.Helper()
	again, err := theirs(data, v)
	if err != nil || !sameJSON(t, again, data) {
		t.Errorf("upstream reads %s as %s, %v", data, again, err)
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal(a, &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &y); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

// TestVersionsLikeUpstream compares the order and the validity of versions with upstream's.
func TestVersionsLikeUpstream(t *testing.T) {
	if got, want := spec.Versions(), version.All.SupportedVersions(); !reflect.DeepEqual(got, want) {
		t.Errorf("versions %v, upstream %v", got, want)
	}
	if spec.Current != version.Current() {
		t.Errorf("current is %s, upstream's %s", spec.Current, version.Current())
	}
	list := []string{"0.1.0", "0.3.1", "0.10.0", "1.0.0", "1.0", "1", "1.1.0", "10.0.0", "0.0.1", ""}
	for _, a := range list {
		for _, b := range list {
			want, err := version.GreaterThan(a, b)
			if err != nil {
				t.Fatal(err)
			}
			if got := spec.Compare(a, b) > 0; got != want {
				t.Errorf("%q > %q is %v, upstream says %v", a, b, got, want)
			}
		}
	}
	for _, bad := range []string{"1.x", "1.2.3.4", "a", "1..2", "."} {
		if spec.ValidateVersion(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
		if _, _, _, err := version.ParseVersion(bad); err == nil {
			t.Errorf("upstream takes %q", bad)
		}
	}
}

func TestParseVersions(t *testing.T) {
	for data, want := range map[string]string{
		`{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}`: "0.4.0 1.0.0",
		`{"cniVersion":"0.2.0"}`:          "0.1.0 0.2.0",
		`{"cniVersion":"1.0.0"}`:          "decoding version info: missing field supportedVersions",
		`{"supportedVersions":["1.0.0"]}`: "decoding version info: missing field cniVersion",
		`x`:                               "decoding version info: invalid character 'x' looking for beginning of value",
	} {
		got := ""
		info, err := spec.ParseVersions([]byte(data))
		if err != nil {
			got = err.Error()
		} else {
			got = strings.Join(info.SupportedVersions, " ")
		}
		if got != want {
			t.Errorf("%s: %q, want %q", data, got, want)
		}
		theirs, terr := (&version.PluginDecoder{}).Decode([]byte(data))
		if terr != nil && terr.Error() != want || terr == nil && strings.Join(theirs.SupportedVersions(), " ") != want {
			t.Errorf("%s: upstream says %v, %v", data, theirs, terr)
		}
	}
}

// TestNamesLikeUpstream compares which names we and upstream refuse, and the error texts.
func TestNamesLikeUpstream(t *testing.T) {
	names := []string{
		"", "a", "0", "a-b_c.d", "-a", ".a", "_a", ".", "..", "a/b", "a b", "é", "a\n", "eth0:1", "sixteen-letters-", "fifteen-letters",
		"../../etc", "a\tb", "a\u00a0b", "a\u0085b", strings.Repeat("x", 200),
	}
	for _, name := range names {
		same(t, "containerID", name, spec.ValidateContainerID(name), utils.ValidateContainerID(name))
		same(t, "network", name, spec.ValidateNetworkName(name), utils.ValidateNetworkName(name))
		same(t, "interface", name, spec.ValidateIfName(name), utils.ValidateInterfaceName(name))
	}
	if err := spec.ValidateIfName("a\x00"); err == nil {
		t.Error("an interface name with a NUL is taken, as by upstream")
	}
	long := strings.Repeat("x", 201) // longer than a file name
	for _, err := range []error{spec.ValidateContainerID(long), spec.ValidateNetworkName(long)} {
		if err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("201 characters: %v", err)
		}
	}
}

// same compares an error with upstream's message and code. want may be a nil pointer in an
// interface, so same looks at its text instead of comparing it with nil.
func same(t *testing.T, what, name string, got error, want interface{ Error() string }) {
	t.Helper()
	wanted := fmt.Sprintf("%v", want)
	refused := wanted != "<nil>"
	if refused != (got != nil) {
		t.Errorf("%s %q: %v, upstream says %v", what, name, got, wanted)
		return
	}
	wanted = strings.TrimSuffix(strings.Split(wanted, ";")[0], ":") // "missing network name:"
	if refused && spec.AsError(got).Msg != wanted {
		t.Errorf("%s %q: %q, upstream says %q", what, name, spec.AsError(got).Msg, wanted)
	}
}
