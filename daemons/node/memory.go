// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
)

// A list of all pods and each program make much garbage for a moment. A limit lets the collector run
// more often then, and seldom otherwise. The limit grows with the memory in use: a limit below that
// would only cost processor time.
const (
	memoryLeast = 36 << 20 // limit for a small cluster
	memoryBase  = 14 << 20 // what a process needs apart from objects, and room to work
)

// limitMemory sets the limit for what is in use now.
func limitMemory() {
	const live = "/gc/heap/live:bytes"
	sample := []runtimemetrics.Sample{{Name: live}}
	runtimemetrics.Read(sample)
	if sample[0].Value.Kind() != runtimemetrics.KindUint64 {
		return
	}
	used := min(sample[0].Value.Uint64(), math.MaxInt64/2)
	debug.SetMemoryLimit(max(memoryLeast, memoryBase+int64(used)*5/4)) //nolint:gosec // it is small enough
}
