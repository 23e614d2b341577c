// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/patchbay-net/patchbay/spec"
)

var update = flag.Bool("update", false, "write the goldens of testdata anew")

// results are in the form of the newest version. The test converts each result through every pair
// of versions.
var results = map[string]string{
	"full": `{"cniVersion":"1.1.0",
		"interfaces":[{"name":"cni0","mac":"00:11:22:33:44:55"},{"name":"veth1","mac":"00:11:22:33:44:66","mtu":1400},
			{"name":"eth0","mac":"99:88:77:66:55:44","mtu":1400,"sandbox":"/var/run/netns/blue","socketPath":"/run/s","pciID":"0000:00:1f.6"}],
		"ips":[{"interface":2,"address":"10.1.0.5/16","gateway":"10.1.0.1"},{"interface":2,"address":"10.1.0.6/16"},
			{"interface":2,"address":"2001:db8::5/64","gateway":"2001:db8::1"},{"address":"fe80::1/10"}],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.2.0.0/16","gw":"10.1.0.9","mtu":1300,"advmss":1260,"priority":5,"table":100,"scope":253},
			{"dst":"::/0","gw":"2001:db8::2"},{"dst":"10.3.0.0/16","table":0,"scope":0}],
		"dns":{"nameservers":["10.1.0.1","2001:db8::1"],"domain":"example.org","search":["a.example.org"],"options":["ndots:2"]}}`,
	"ipam":    `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/16","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}`,
	"v6 only": `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"interface":0,"address":"fd00::2/64"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`,
	"l2":      `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}]}`,
	"empty":   `{"cniVersion":"1.1.0"}`,
	"dns":     `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.5/16"}],"dns":{"search":["<&>é"]}}`,
}

// TestConvertLikeUpstream converts every result through every pair of versions, once with our
// code and once with containernetworking/cni. It compares the JSON and the errors.
func TestConvertLikeUpstream(t *testing.T) {
	for name, data := range results {
		for _, from := range spec.Versions() {
			start, err := theirs([]byte(data), from)
			if err != nil {
				sameError(t, name, "1.1.0", from, data, err)
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

// TestGoldens pins our output in each version.
func TestGoldens(t *testing.T) {
	r, err := spec.ParseResult([]byte(results["full"]), "")
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
