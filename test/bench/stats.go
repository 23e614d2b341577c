// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"time"
)

// sample has the costs of one kind of operation.
type sample []cost

// wall returns the p-th percentile of the wall time, 0 <= p <= 100. It is the smallest value that
// p percent of the sample do not exceed.
func (s sample) wall(p int) time.Duration {
	return percentile(s, p, func(c cost) time.Duration { return c.Wall })
}

// cpu returns the mean CPU time. The kernel's CPU clock is exact only in sum, so percentiles would
// mean nothing.
func (s sample) cpu() time.Duration {
	if len(s) == 0 {
		return 0
	}
	var sum time.Duration
	for _, c := range s {
		sum += c.CPU
	}
	return sum / time.Duration(len(s))
}

func percentile(s sample, p int, of func(cost) time.Duration) time.Duration {
	if len(s) == 0 {
		return 0
	}
	values := make([]time.Duration, len(s))
	for i, c := range s {
		values[i] = of(c)
	}
	slices.Sort(values)
	return values[max(0, (len(values)*p+99)/100-1)]
}
