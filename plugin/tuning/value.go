// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"cmp"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// The kernel does not print a sysctl as it was written. It separates numbers by tabs, prints them in decimal,
// joins ports into ranges, writes addresses in full, and rounds times to its ticks.

// same reports whether the kernel's text now is what it makes of the written text want. If want has fewer numbers
// than the sysctl, the kernel leaves the others unchanged. If want has more, it ignores them.
func same(key, want, now string) bool {
	w, n := strings.Fields(want), strings.Fields(now)
	if len(w) == 0 || len(n) == 0 {
		return len(w) == len(n)
	}
	if len(w) != len(n) && !(allNumbers(w) && allNumbers(n)) {
		return false
	}
	for i := range min(len(w), len(n)) {
		if !sameWord(key, w[i], n[i]) {
			return sameSet(w, n)
		}
	}
	return true
}

func allNumbers(words []string) bool {
	return !slices.ContainsFunc(words, func(s string) bool { _, ok := readNumber(s); return !ok })
}

// sameSet compares words in any order: the kernel lists modules, such as those of
// tcp_allowed_congestion_control, in its own order.
func sameSet(a, b []string) bool {
	if allNumbers(a) || allNumbers(b) {
		return false
	}
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

func sameWord(key, want, now string) bool {
	if want == now {
		return true
	}
	if a, ok := readNumber(want); ok {
		b, ok := readNumber(now)
		return ok && (a == b || rounded(key, a, b))
	}
	if a, err := netip.ParseAddr(want); err == nil {
		b, err := netip.ParseAddr(now)
		return err == nil && a == b
	}
	if a, ok := ranges(want); ok {
		b, ok := ranges(now)
		return ok && slices.Equal(a, b)
	}
	return strings.EqualFold(want, now) // hexadecimal keys, as tcp_fastopen_key
}

// readNumber reads a number as the kernel does: 0x begins a hexadecimal number, and 0 an octal one.
func readNumber(s string) (int64, bool) {
	if strings.ContainsAny(s, "_+oObB") && !strings.HasPrefix(strings.ToLower(s), "0x") {
		return 0, false // Go takes 1_000, 0b1 and 0o7
	}
	n, err := strconv.ParseInt(s, 0, 64)
	return n, err == nil
}

// ticks are the sysctls of neighbours in hundredths of a second.
var ticks = [...]string{"retrans_time", "anycast_delay", "proxy_delay", "locktime"}

// rounded reports whether the kernel may have rounded want to now. It stores times in ticks, which last 1 to 10 ms.
// It rounds milliseconds up, and hundredths of a second down.
func rounded(key string, want, now int64) bool {
	switch base := path.Base(key); {
	case strings.HasSuffix(base, "_ms"):
		return now > want && now < want+10
	case strings.Contains(key, "/neigh/") && slices.Contains(ticks[:], base):
		return now == want-1
	}
	return false
}

type span struct{ from, to int64 }

// ranges reads a list of numbers and ranges, such as 8080,9000-9002, and joins those that touch.
func ranges(s string) ([]span, bool) {
	var list []span
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, ok1 := readNumber(from)
		b, ok2 := readNumber(to)
		if !ok1 || !ok2 || a > b || b == math.MaxInt64 {
			return nil, false
		}
		list = append(list, span{a, b})
	}
	slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	joined := list[:1]
	for _, next := range list[1:] {
		if last := &joined[len(joined)-1]; next.from <= last.to+1 {
			last.to = max(last.to, next.to)
			continue
		}
		joined = append(joined, next)
	}
	return joined, true
}
