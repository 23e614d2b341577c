// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// BenchmarkDrop sends packets that a policy drops, of one flow or each of another, through rules with tails and through those
// of a release without. The metric is the sender's processor time for each packet, in which the kernel also forwards and drops
// it.
func BenchmarkDrop(b *testing.B) {
	for _, ports := range []struct {
		name string
		n    int
	}{{"flow", 1}, {"scan", 40000}} {
		for _, rules := range []struct {
			name string
			load func(*pair)
		}{{"former", (*pair).loadUntailed}, {"tails", func(p *pair) { p.load(isolateAll) }}} {
			b.Run(ports.name+"/"+rules.name, func(b *testing.B) {
				p := newPair(b, Options{Tell: toldTo})
				rules.load(p)
				p.flood(b, ports.n)
			})
		}
	}
}

// loadUntailed loads the rules of a release without tails.
func (p *pair) loadUntailed() {
	program := policy.Compile(shop(p.t, isolateAll))
	must(p.t, p.node.Do(func() error {
		checkSources(p.enforcer.fw, true, false)
		must(p.t, p.enforcer.fw.Commit(p.t.Context()))
		before, err := p.enforcer.before()
		must(p.t, err)
		todo, err := planOf(before, untailed(program), nil)
		must(p.t, err)
		return p.enforcer.apply(p.t.Context(), todo)
	}))
}

// flood sends b.N datagrams of the client.
func (p *pair) flood(b *testing.B, ports int) {
	must(b, p.client.Do(func() error {
		runtime.LockOSThread() // the time is this thread's
		defer runtime.UnlockOSThread()
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		must(b, err)
		defer unix.Close(fd) //nolint:errcheck // a test
		to := &unix.SockaddrInet4{Addr: [4]byte{10, 1, 1, 2}}
		began := processorTime(b)
		b.ResetTimer()
		for i := range b.N {
			to.Port = 1000 + i%ports
			must(b, unix.Sendto(fd, []byte("x"), 0, to))
		}
		b.StopTimer()
		b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
		return nil
	}))
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_THREAD, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
