// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// storms returns the storm if the environment has the seed of its choices, as in the nightly run.
// The moment of a kill is random, so each storm finds other faults, and takes seconds or minutes.
// Therefore `make e2e` runs no storm.
func storms(t *testing.T) []scenario {
	seed, given := draw.Seed(t)
	if !given {
		return nil
	}
	return []scenario{{"storm", func(l *lab.Lab) { storm(l, rand.New(rand.NewPCG(seed, 0))) }}}
}

// storm: running containers are connected and disconnected all at once while the driver is killed.
// Afterwards each container has its interfaces and its published port again, and nothing else is
// left. Meanwhile the default route moves to macnet, whose name sorts first, and back.
func storm(l *lab.Lab, rnd *rand.Rand) {
	socket := l.Listen(lab.DriverSocket)
	l.KillDriver()
	l.StartDriverOn(socket)
	names := []string{"s1", "s2"}
	for i, name := range names {
		l.Start(name, "podnet", "-p", fmt.Sprintf("%d:80", 8081+i))
	}
	before := l.Now()
	for calls := switches(l, rnd, names); waits(calls, rnd); {
		l.KillDriver()
		l.StartDriverOn(socket)
	}
	for _, name := range names {
		for _, network := range others() {
			_, _ = l.TryDocker("network", "disconnect", network, name)
		}
	}
	l.Same("after the storm", before)
	for i := range names {
		l.Fetch(l.Outside(), lab.Host4, fmt.Sprint(8081+i))
	}
	l.Ping("s1", "s2")
	l.Remove(names...)
	socket.Close()
	l.RestartDriver()
}

// others are the networks to which containers of podnet are connected.
func others() []string { return []string{"ptpnet", "macnet"} }

// switches connects and disconnects each container and network several times, all in
// parallel, and closes the channel after the last. Calls may fail.
func switches(l *lab.Lab, rnd *rand.Rand, names []string) (done chan struct{}) {
	var all sync.WaitGroup
	for _, name := range names {
		for _, network := range others() {
			verbs := []string{"connect", "disconnect", "connect", "disconnect"}[rnd.IntN(2):]
			all.Go(func() {
				for _, verb := range verbs {
					_, _ = l.TryDocker("network", verb, network, name)
				}
			})
		}
	}
	done = make(chan struct{})
	go func() {
		defer close(done)
		all.Wait()
	}()
	return done
}

// waits lets some time pass, and reports whether calls are still running.
func waits(calls chan struct{}, rnd *rand.Rand) bool {
	select {
	case <-calls:
		return false
	case <-time.After(time.Duration(rnd.IntN(1500)) * time.Millisecond):
		return true
	}
}
