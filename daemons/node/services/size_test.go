// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"runtime"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/servicetest"
)

// heap returns the bytes of the heap that are in use.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// fill lists many Services, and returns the number of their endpoints.
func fill(t testing.TB, c *Cluster, number int) (endpoints int) {
	t.Helper()
	list := func(k Kind, object func(i int) string) {
		if err := c.Replace(k, func(yield func([]byte, error) bool) {
			for i := 0; i < number && yield([]byte(object(i)), nil); i++ {
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	list(Services, servicetest.ManyService)
	list(EndpointSlices, func(i int) string {
		text := servicetest.ManySlice(i, endpoints, time.Unix(0, 0))
		endpoints += servicetest.ManyEndpoints(i)
		return text
	})
	for k, object := range map[Kind]string{Nodes: node("n1", ""), ServiceCIDRs: cidr("10.96.0.0/12")} {
		if err := c.Replace(k, listOf(object)); err != nil {
			t.Fatal(err)
		}
	}
	return endpoints
}

// TestMemory measures the objects of a large cluster and their program, and limits both together. PATCHBAY_SERVICE_MEMORY is the number of Services.
func TestMemory(t *testing.T) {
	number := draw.Number(t, "PATCHBAY_SERVICE_MEMORY", 1000, 10000)
	before := heap()
	c := New("n1", services.Options{})
	endpoints := fill(t, c, number)
	listed := heap() - before
	c.next()
	objects := heap() - before
	program := services.Compile(&c.state, nil)
	all := heap() - before
	t.Logf("%d Services with %d endpoints: lists %d kB, objects %d kB, with their program %d kB", number, endpoints, listed/1000, objects/1000, all/1000)
	if most := 200 + number*11/10; all/1000 > most {
		t.Errorf("they take %d kB, want at most %d", all/1000, most)
	}
	runtime.KeepAlive(c)
	runtime.KeepAlive(program)
}
