// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package order_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/order"
)

func TestBy(t *testing.T) {
	list := []int{3, 1, 2, 1}
	if order.By(list, cmp.Compare[int]); !slices.Equal(list, []int{1, 1, 2, 3}) {
		t.Error(list)
	}
	var words []string // long enough not to be sorted stably by chance
	for i := range 100 {
		words = append(words, string(rune('a'+i%2))+strings.Repeat("x", i))
	}
	order.Stable(words, func(a, b string) int { return int(a[0]) - int(b[0]) })
	if !slices.IsSortedFunc(words, func(a, b string) int { return cmp.Or(int(a[0])-int(b[0]), len(a)-len(b)) }) {
		t.Error(words)
	}
}

func TestValues(t *testing.T) {
	if got := order.Values(map[string]int{"b": 2, "a": 1, "c": 3}); !slices.Equal(got, []int{1, 2, 3}) {
		t.Error(got)
	}
}
