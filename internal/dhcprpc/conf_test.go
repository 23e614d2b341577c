// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcprpc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

func TestOptions(t *testing.T) {
	for _, tc := range []struct{ ipam, args, want string }{
		{``, "", "[] [121 3 1 6 15 119]"},
		{`"request":[{"option":"121"},{"option":"routers"}]`, "", "[] [121 3 1 6 15 119]"},
		{`"request":[{"option":"routers"},{"option":"42"}]`, "", "[] [121 3 42 1 6 15 119]"},
		{`"request":[{"option":"routers"},{"option":"121"},{"skipDefault":true}]`, "", "[] [121 3]"},
		{`"request":[{"skipDefault":true},{"option":"subnet-mask"}]`, "", "[] [1]"},
		{`"request":[{"skipDefault":true}]`, "", "[] []"},
		{`"provide":[{"option":"host-name","value":"web"},{"option":"60","value":""}]`, "", "[12:web] [121 3 1 6 15 119]"},
		{`"provide":[{"option":"12","value":"web","fromArg":"NAME"}]`, "NAME=a=b;x;NAME=c=d", "[12:c=d] [121 3 1 6 15 119]"},
		{`"provide":[{"option":"user-class","fromArg":"NAME"}]`, "OTHER=1", "[] [121 3 1 6 15 119]"},
	} {
		c, err := Parse([]byte(`{"ipam":{` + tc.ipam + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		o, err := c.Options(tc.args)
		if err != nil {
			t.Fatal(err)
		}
		var provide []any
		for _, p := range o.Provide {
			provide = append(provide, fmt.Sprintf("%d:%s", p.Code, p.Value))
		}
		if got := fmt.Sprintf("%v %v", provide, o.Request); got != tc.want {
			t.Errorf("%s %s: %s, want %s", tc.ipam, tc.args, got, tc.want)
		}
	}
}

func TestRefused(t *testing.T) {
	long := strings.Repeat("x", 256)
	for _, tc := range []struct {
		conf, args string
		code       spec.Code
		msg        string
	}{
		{`{}`, "", 7, "IPAM config missing 'ipam' key"},
		{`{"ipam":1}`, "", 6, "failed to load netconf: "},
		{`{"ipam":{"dhcpv4":false}}`, "", 7, "neither dhcpv4 nor dhcpv6"},
		{`{"ipam":{"priority":-1}}`, "", 7, "invalid priority -1"},
		{`{"ipam":{"priority":4294967296}}`, "", 7, "invalid priority 4294967296"},
		{`{"ipam":{"request":[{"option":"tea"}]}}`, "", 7, `Can not parse option "tea": Can not parse option: strconv.ParseUint`},
		{`{"ipam":{"provide":[{"option":"256","value":"x"}]}}`, "", 7, `Can not parse option "256"`},
		{`{"ipam":{"provide":[{"option":"255","value":"x"}]}}`, "", 7, `Can not parse option "255"`},
		{`{"ipam":{"provide":[{"option":"12","value":"` + long + `"}]}}`, "", 7, `value too long for option "12": "xxx`},
		{`{"ipam":{"provide":[{"option":"12","fromArg":"A"}]}}`, "A=" + long, 7, `value too long for option "12" from CNI_ARGS "A"`},
	} {
		c, err := Parse([]byte(tc.conf))
		if err == nil {
			_, err = c.Options(tc.args)
		}
		if err == nil || spec.ErrorCode(err) != tc.code || !strings.HasPrefix(err.Error(), tc.msg) {
			t.Errorf("%.80s: code %d, %v; want %d, %s", tc.conf, spec.ErrorCode(err), err, tc.code, tc.msg)
		}
	}
}
