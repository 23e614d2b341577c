// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package order sorts without a copy of the algorithm for each type: slices.SortFunc
// is compiled anew for every one, 8 to 17 KB of a program that each container starts.
package order

import "sort"

// By sorts list as compare says: negative when a comes before b.
func By[T any](list []T, compare func(a, b T) int) {
	sort.Slice(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}

// Stable is By that keeps equal ones in their order.
func Stable[T any](list []T, compare func(a, b T) int) {
	sort.SliceStable(list, func(i, j int) bool { return compare(list[i], list[j]) < 0 })
}
