// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package order sorts with one copy of the algorithm for all types. The compiler makes a copy
// of slices.SortFunc for each type, 8 to 17 KB each, in a program that every container starts.
package order

import "sort"

// By sorts list by compare, which returns a negative number if a comes before b.
func By[T any](list []T, compare func(a, b T) int) {
	sort.Slice(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}

// Stable works like By and keeps the order of equal elements.
func Stable[T any](list []T, compare func(a, b T) int) {
	sort.SliceStable(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}
