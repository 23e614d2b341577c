// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/spec"
)

// Many containers come and go at once on a network whose bridge, gateway and masquerade do not
// exist yet. Each of them works, and the last one removes what all shared.
func TestConcurrent(t *testing.T) {
	w := newWorld(t)
	before := leak.Must(t)
	var pods []*endpointtest.Pod
	for i := range 12 {
		pods = append(pods, w.Pod(fmt.Sprintf("p%d", i), dual+`, "ipMasq": true, "macspoofchk": true`))
	}
	for round := range 3 {
		each(t, pods, func(p *endpointtest.Pod) error { return p.Do(spec.Add) })
		each(t, pods, func(p *endpointtest.Pod) error { return p.Do(spec.Check) })
		each(t, pods[:round*4], func(p *endpointtest.Pod) error { return p.Do(spec.Del) })
		each(t, pods[round*4:], func(p *endpointtest.Pod) error { return p.Do(spec.Check) })
		each(t, pods, func(p *endpointtest.Pod) error { return p.Do(spec.Del) })
		leak.NoLeaks(t, before)
	}
}

func each(t *testing.T, pods []*endpointtest.Pod, do func(*endpointtest.Pod) error) {
	t.Helper()
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			if err := do(p); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
