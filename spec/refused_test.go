// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

// TestRefusedResults checks that these results are refused with these error texts.
func TestRefusedResults(t *testing.T) {
	tests := []struct {
		data, msg string
		code      spec.Code
	}{
		{``, "decode result: unexpected end of JSON input", spec.CodeDecoding},
		{`[]`, "decode result: json: cannot unmarshal array", spec.CodeDecoding},
		{`{"cniVersion":1}`, "decode result: json: cannot unmarshal number", spec.CodeDecoding},
		{`{"cniVersion":"9.9.9"}`, `unsupported CNI result version "9.9.9"`, spec.CodeIncompatibleVersion},
		{`{"cniVersion":"1.0"}`, `unsupported CNI result version "1.0"`, spec.CodeIncompatibleVersion},
		{`{"cniVersion":"1.0.0","ips":[{}]}`, "decode result: ips[0]: the address is missing", spec.CodeDecoding},
		{`{"cniVersion":"1.0.0","ips":[null]}`, "decode result: ips[0]: the address is missing", spec.CodeDecoding},
		{`{"cniVersion":"1.0.0","ips":[{"address":""}]}`, "decode result: ips[0]: the address is missing", spec.CodeDecoding},
		{`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1"}]}`, `decode result: netip.ParsePrefix("10.0.0.1"): no '/'`, spec.CodeDecoding},
		{`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/33"}]}`, `decode result: netip.ParsePrefix("10.0.0.1/33"): prefix length out of range`, spec.CodeDecoding},
		{`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8","gateway":"x"}]}`, `decode result: ParseAddr("x")`, spec.CodeDecoding},
		{`{"cniVersion":"1.0.0","routes":[{"gw":"10.0.0.1"}]}`, "decode result: routes[0]: the destination is missing", spec.CodeDecoding},
		{`{"ip4":{}}`, "decode result: ips[0]: the address is missing", spec.CodeDecoding},
		{`{"cniVersion":"0.2.0","ip6":{"ip":"fd00::1/64","routes":[{}]}}`, "decode result: routes[0]: the destination is missing", spec.CodeDecoding},
		{`{"cniVersion":"0.4.0","interfaces":{}}`, "decode result: json: cannot unmarshal object", spec.CodeDecoding},
	}
	for _, test := range tests {
		r, err := spec.ParseResult([]byte(test.data), "")
		if err == nil || !strings.HasPrefix(err.Error(), test.msg) || spec.ErrorCode(err) != test.code || r != nil {
			t.Errorf("%s: %v, %v (code %d), want %s", test.data, r, err, spec.ErrorCode(err), test.msg)
		}
	}
}

// TestTolerantResults checks that these results are accepted, although they are not quite right.
func TestTolerantResults(t *testing.T) {
	for data, version := range map[string]string{
		`null`: "1.0.0", // an empty result
		`{}`:   "1.1.0", // takes the version from the caller (cni#895)
		`{"ips":[{"version":"4","address":"10.0.0.1/8"}],"unknown":{}}`:                             "1.0.0",
		`{"ips":[{"address":"10.0.0.1/8","interface":0}]}`:                                          "1.0.0", // without an interface, as in the reference
		`{"interfaces":[{"name":"a"}],"ips":[{"address":"10.0.0.1/8","interface":-1}]}`:             "1.1.0",
		`{"CNIVersion":"0.3.0","IPs":[{"Address":"10.0.0.1/8"}]}`:                                   "0.3.0",
		`{"cniVersion":"0.3.1","ips":[{"version":"6","address":"10.0.0.1/8","gateway":""}]}`:        "0.3.1",
		`{"cniVersion":"0.1.0","ip4":{"ip":"10.0.0.1/8","gateway":"10.0.0.2"},"ip6":null,"dns":{}}`: "0.1.0",
	} {
		r, err := spec.ParseResult([]byte(data), version)
		if err != nil || r.CNIVersion != version {
			t.Errorf("%s: %+v, %v", data, r, err)
		}
	}
}

// TestRefusedEncodings checks that Encode refuses results that a version cannot express.
func TestRefusedEncodings(t *testing.T) {
	r := &spec.Result{Interfaces: []spec.Interface{{Name: "eth0"}}}
	if _, err := r.Encode("0.2.0"); spec.ErrorCode(err) != spec.CodeIncompatibleVersion ||
		!strings.HasPrefix(err.Error(), "cannot convert: no valid IP addresses; version 0.2.0 cannot express") {
		t.Errorf("%v", err)
	}
	if _, err := r.Encode("2.0.0"); spec.ErrorCode(err) != spec.CodeIncompatibleVersion {
		t.Errorf("%v", err)
	}
}

func TestPluginTypes(t *testing.T) {
	for _, bad := range []string{"", "..", ".", "a/b", `a\b`, "a\x00b", "/bin/sh"} {
		if err := spec.ValidatePluginType(bad); err == nil || spec.ErrorCode(err) != spec.CodeInvalidConfig {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, good := range []string{"bridge", "host-local", "x.y"} {
		if err := spec.ValidatePluginType(good); err != nil {
			t.Error(err)
		}
	}
}

func TestErrors(t *testing.T) {
	inner := spec.Errorf(spec.CodeTryAgain, "lock: %w", fs.ErrNotExist).WithDetails("file %s", "x")
	outer := fmt.Errorf("add %s: %w", "c1", inner)
	e := spec.AsError(outer)
	if e.Code != spec.CodeTryAgain || e.Msg != "add c1: lock: file does not exist; file x" || !errors.Is(e, fs.ErrNotExist) {
		t.Errorf("%+v", e)
	}
	if e := spec.AsError(inner); e.Msg != "lock: file does not exist" || e.Details != "file x" {
		t.Errorf("%+v", e)
	}
	if e := spec.AsError(fs.ErrExist); e.Code != spec.CodeInternal || !errors.Is(e, fs.ErrExist) {
		t.Errorf("%+v", e)
	}
	if spec.ErrorCode(nil) != 0 {
		t.Error("nil has a code")
	}
	for data, want := range map[string]bool{
		`{"code":7,"msg":"m"}`: true, `{"msg":"m"}`: true, `{"code":3}`: true, `{}`: false, `x`: false, `{"code":-1,"msg":"m"}`: false, `"s"`: false,
	} {
		if _, ok := spec.ParseError([]byte(data)); ok != want {
			t.Errorf("%s is an error object: %v", data, ok)
		}
	}
}

// TestValidate checks that Validate refuses these results, which ParseResult accepts.
func TestValidate(t *testing.T) {
	for data, msg := range map[string]string{
		`{"ips":[{"address":"10.0.0.1/8","interface":0}]}`:                                                      "decode result: ips[0]: 10.0.0.1/8 is on interface 0, and there are 0 interfaces",
		`{"interfaces":[{"name":"a"}],"ips":[{"address":"10.0.0.1/8"},{"address":"fd00::1/64","interface":1}]}`: "decode result: ips[1]: fd00::1/64 is on interface 1, and there are 1 interfaces",
		`{"interfaces":[{"name":"a"}],"ips":[{"address":"10.0.0.1/8","interface":-1}]}`:                         "decode result: ips[0]: 10.0.0.1/8 is on interface -1",
	} {
		r, err := spec.ParseResult([]byte(data), "1.0.0")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Validate(); err == nil || !strings.HasPrefix(err.Error(), msg) || spec.ErrorCode(err) != spec.CodeDecoding {
			t.Errorf("%s: %v, want %s", data, err, msg)
		}
		for _, ip := range r.IPs {
			if r.Of(ip) != nil {
				t.Errorf("%s: %s is on %v", data, ip.Address, r.Of(ip))
			}
		}
	}
}
