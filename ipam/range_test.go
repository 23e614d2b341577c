// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"net/netip"
	"testing"
)

func TestRange(t *testing.T) {
	for _, tc := range []struct{ subnet, start, end, gateway, want, err string }{
		{"10.1.0.0/24", "", "", "", "10.1.0.1-10.1.0.254 10.1.0.1", ""},
		{"10.1.0.0/30", "", "", "", "10.1.0.1-10.1.0.2 10.1.0.1", ""},
		{"10.1.0.0/16", "10.1.0.255", "10.1.1.255", "10.9.9.9", "10.1.0.255-10.1.1.255 10.9.9.9", ""},
		{"10.1.0.0/24", "10.1.0.0", "10.1.0.255", "", "10.1.0.0-10.1.0.255 10.1.0.1", ""},
		{"::ffff:10.1.0.0/120", "", "", "", "", "IPNet IP and Mask version mismatch"},
		{"10.1.0.0/24", "::ffff:10.1.0.9", "", "", "10.1.0.9-10.1.0.254 10.1.0.1", ""},
		{"fd00::/64", "", "", "", "fd00::1-fd00::ffff:ffff:ffff:ffff fd00::1", ""},
		{"fd00::/126", "", "", "", "fd00::1-fd00::3 fd00::1", ""},
		{"", "", "", "", "", "IP <nil> not v4 nor v6"},
		{"10.1.0.0", "", "", "", "", "invalid CIDR address: 10.1.0.0"},
		{"fe80::%eth0/64", "", "", "", "", "invalid CIDR address: fe80::%eth0/64"},
		{"10.1.0.0/24", "fe80::1%eth0", "", "", "", "invalid IP address: fe80::1%eth0"},
		{"10.1.0.0/24", "", "010.1.0.1", "", "", "invalid IP address: 010.1.0.1"},
		{"10.1.0.0/24", "", "", "x", "", "invalid IP address: x"},
		{"10.1.0.0/31", "", "", "", "", "Network 10.1.0.0/31 too small to allocate from"},
		{"10.1.0.0/32", "", "", "", "", "Network 10.1.0.0/32 too small to allocate from"},
		{"fd00::/127", "", "", "", "", "Network fd00::/127 too small to allocate from"},
		{"10.1.0.9/24", "", "", "", "", "Network has host bits set. For a subnet mask of length 24 the network address is 10.1.0.0"},
		{"10.1.0.0/24", "10.1.1.1", "", "", "", "RangeStart 10.1.1.1 not in network 10.1.0.0/24"},
		{"10.1.0.0/24", "fd00::1", "", "", "", "RangeStart fd00::1 not in network 10.1.0.0/24"},
		{"10.1.0.0/24", "", "10.1.1.1", "", "", "RangeEnd 10.1.1.1 not in network 10.1.0.0/24"},
		{"10.1.0.0/24", "", "fd00::1", "", "", "RangeEnd fd00::1 not in network 10.1.0.0/24"},
		{"10.1.0.0/24", "10.1.0.9", "10.1.0.8", "", "", "RangeStart 10.1.0.9 is after RangeEnd 10.1.0.8"},
		{"10.1.0.0/24", "10.1.0.255", "", "", "", "RangeStart 10.1.0.255 is after the last address of network 10.1.0.0/24, 10.1.0.254"},
	} {
		r, err := ParseRange(tc.subnet, tc.start, tc.end, tc.gateway)
		if err == nil {
			err = r.Canonicalize()
		}
		got, text := "", ""
		if err != nil {
			text = err.Error()
		} else {
			got = r.String() + " " + r.Gateway.String()
		}
		if got != tc.want || text != tc.err {
			t.Errorf("%+v: %q, error %q", tc, got, text)
		}
	}
}

func TestCanonicalize(t *testing.T) {
	type set = [][2]string // subnet and "start end"
	mk := func(s set) (out RangeSet) {
		for _, r := range s {
			x, err := ParseRange(r[0], r[1], "", "")
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, x)
		}
		return out
	}
	for _, tc := range []struct {
		sets []set
		err  string
	}{
		{nil, "no IP ranges specified"},
		{[]set{{{"10.1.0.0/24", ""}}, {}}, "invalid range set 1: empty range set"},
		{[]set{{{"10.1.0.0/24", ""}, {"fd00::/64", ""}}}, "invalid range set 0: mixed address families"},
		{[]set{{{"10.1.0.0/24", ""}, {"10.1.0.128/25", ""}}},
			"invalid range set 0: subnets 10.1.0.1-10.1.0.254 and 10.1.0.129-10.1.0.254 overlap"},
		{[]set{{{"10.1.0.0/24", ""}}, {{"10.2.0.0/24", ""}}, {{"10.1.0.0/25", ""}}}, "range set 0 overlaps with 2"},
		{[]set{{{"10.3.0.0/24", ""}}, {{"10.2.0.0/24", ""}}, {{"10.2.0.0/25", ""}}}, "range set 1 overlaps with 2"},
		{[]set{{{"10.1.0.0/24", ""}}, {{"fd00::/64", ""}}}, ""},
	} {
		var sets []RangeSet
		for _, s := range tc.sets {
			sets = append(sets, mk(s))
		}
		err := Canonicalize(sets)
		if (err == nil) != (tc.err == "") || err != nil && err.Error() != tc.err {
			t.Errorf("%v: %v, want %q", tc.sets, err, tc.err)
		}
	}
	if !errors.Is(Canonicalize(nil), ErrNoRanges) {
		t.Error("not ErrNoRanges")
	}
}

func TestSpans(t *testing.T) {
	set := RangeSet{}
	for _, s := range [][3]string{{"10.1.0.0/24", "10.1.0.2", "10.1.0.5"}, {"10.2.0.0/24", "10.2.0.2", "10.2.0.3"}} {
		r, err := ParseRange(s[0], s[1], s[2], "")
		if err != nil {
			t.Fatal(err)
		}
		set = append(set, r)
	}
	if err := set.Canonicalize(); err != nil {
		t.Fatal(err)
	}
	for cursor, want := range map[string]string{
		"":         "10.1.0.2-10.1.0.5 10.2.0.2-10.2.0.3 ",
		"9.9.9.9":  "10.1.0.2-10.1.0.5 10.2.0.2-10.2.0.3 ",
		"10.1.0.3": "10.1.0.4-10.1.0.5 10.2.0.2-10.2.0.3 10.1.0.2-10.1.0.3 ",
		"10.1.0.5": "10.2.0.2-10.2.0.3 10.1.0.2-10.1.0.5 ",
		"10.2.0.3": "10.1.0.2-10.1.0.5 10.2.0.2-10.2.0.3 ",
	} {
		a, _ := ParseAddr(cursor)
		got := ""
		for _, s := range spans(set, a) {
			got += s.first.String() + "-" + s.last.String() + " "
		}
		if got != want {
			t.Errorf("from %q: %s, want %s", cursor, got, want)
		}
	}
}

func FuzzRange(f *testing.F) {
	f.Add("10.1.0.0/24", "", "", "")
	f.Add("fd00::/64", "fd00::5", "fd00::9", "fd00::5")
	f.Add("0.0.0.0/0", "255.255.255.255", "", "0.0.0.0")
	f.Add("::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "")
	f.Add("::ffff:0.0.0.0/96", "", "", "")
	f.Fuzz(func(t *testing.T, subnet, start, end, gateway string) {
		r, err := ParseRange(subnet, start, end, gateway)
		if err != nil || (RangeSet{r}).Canonicalize() != nil {
			return
		}
		set := RangeSet{r}
		if err := set.Canonicalize(); err != nil {
			t.Fatal(err)
		}
		r = set[0]
		if !r.Contains(r.Start) || !r.Contains(r.End) || r.End.Less(r.Start) || !r.Gateway.IsValid() {
			t.Fatalf("%v: ends out of range", r)
		}
		again := r
		if err := again.Canonicalize(); err != nil || again != r {
			t.Fatalf("%v is not stable: %v, %v", r, again, err)
		}
		for _, cursor := range []netip.Addr{{}, r.Start, r.End} {
			for _, s := range spans(set, cursor) {
				if s.last.Less(s.first) || !r.Contains(s.first) || !r.Contains(s.last) {
					t.Fatalf("span %v outside %v", s, r)
				}
			}
		}
	})
}
