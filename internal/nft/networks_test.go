// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"
	"testing"
)

func exempts(prefixes ...string) (out []Element) {
	for _, p := range prefixes {
		subnet := netip.MustParsePrefix(p)
		out = append(out, pair(SetExempt4, subnet, subnet, p))
	}
	return out
}

func names(elems []Element) (out []string) {
	for _, e := range elems {
		out = append(out, e.Comment)
	}
	slices.Sort(out)
	return out
}

func wantExempt(t *testing.T, c *Conn, want ...string) {
	t.Helper()
	got, err := c.List(SetExempt4)
	if err != nil || !slices.Equal(names(got), want) {
		t.Errorf("got %q, want %q, %v", names(got), want, err)
	}
}

// If networks are nested, the set holds the widest range. When that range is removed, the ranges
// inside it return.
func TestNestedNetworks(t *testing.T) {
	c := open(t)
	c.Add(exempts("10.1.2.0/24", "10.2.0.0/16")...)
	commit(t, c)
	wantExempt(t, c, "10.1.2.0/24", "10.2.0.0/16")
	t.Run("wider later", func(t *testing.T) {
		c.Add(exempts("10.1.0.0/16")...)
		commit(t, c)
		wantExempt(t, c, "10.1.0.0/16", "10.2.0.0/16")
	})
	t.Run("narrower later", func(t *testing.T) {
		c.Add(exempts("10.1.3.0/24")...)
		commit(t, c)
		wantExempt(t, c, "10.1.0.0/16", "10.2.0.0/16")
	})
	t.Run("narrower removed", func(t *testing.T) {
		c.Remove(exempts("10.1.3.0/24")...)
		commit(t, c)
		wantExempt(t, c, "10.1.0.0/16", "10.2.0.0/16")
	})
	t.Run("wider removed", func(t *testing.T) {
		c.Remove(exempts("10.1.0.0/16")...)
		c.Add(exempts("10.1.2.0/24")...)
		commit(t, c)
		wantExempt(t, c, "10.1.2.0/24", "10.2.0.0/16")
	})
	t.Run("all at once", func(t *testing.T) {
		c.Add(exempts("10.0.0.0/8", "10.1.2.0/24", "10.0.0.0/9", "0.0.0.0/0", "255.255.255.255/32")...)
		commit(t, c)
		wantExempt(t, c, "0.0.0.0/0")
	})
}

func TestPrefixPair(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"10.1.2.3/24", "0.0.0.0/0", "10.1.2.0/24 . 0.0.0.0/0"},
		{"10.1.2.3/32", "10.0.0.0/7", "10.1.2.3 . 10.0.0.0/7"},
		{"fd00::5/61", "::/0", "fd00::/61 . ::/0"},
		{"::1/128", "fd00::/128", "::1 . fd00::"},
	} {
		set, f := SetExempt4, []field{fieldIPv4, fieldIPv4}
		from, to := netip.MustParsePrefix(c.from), netip.MustParsePrefix(c.to)
		if from.Addr().Is6() {
			set, f = SetExempt6, []field{fieldIPv6, fieldIPv6}
		}
		e := pair(set, from, to, "")
		if got := formatRange(f, e.Key, e.KeyEnd); got != c.want {
			t.Errorf("%s . %s is %s, want %s", c.from, c.to, got, c.want)
		}
	}
}
