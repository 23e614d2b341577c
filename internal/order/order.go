// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package order sorts lists of any type with one copy of the algorithm. For slices.SortFunc, the
// compiler makes a copy for each type, 8 to 17 KB each. Every container starts this program, so
// its size matters.
package order

import (
	"maps"
	"slices"
	"sort"
)

// By sorts a list. compare returns a negative number if a comes before b.
func By[T any](list []T, compare func(a, b T) int) {
	sort.Slice(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}

// Stable works like By and keeps the order of equal elements.
func Stable[T any](list []T, compare func(a, b T) int) {
	sort.SliceStable(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}

// Values returns the values of a map in the order of their keys.
func Values[T any](m map[string]T) []T {
	out := make([]T, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[key])
	}
	return out
}
