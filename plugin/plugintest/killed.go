// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"runtime"
	"testing"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Killed runs a call of a plugin up to its n-th step and undoes nothing, as if the process had been killed there. It
// returns how many steps were reached. others are plugins that p may call.
func Killed(t testing.TB, p *plugin.Plugin, call *spec.Call, n int, others ...*plugin.Plugin) (steps int) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s := plugin.NewSession(append([]*plugin.Plugin{p}, others...))
		defer s.Close()
		s.Fault = func(string) error {
			if steps++; steps == n {
				runtime.Goexit()
			}
			return nil
		}
		b := plugin.Builtin{NewSession: func() *plugin.Session { return s }}
		if _, err := b.Invoke(context.Background(), p.Name, call); err != nil {
			t.Error(err)
		}
	}()
	<-done
	return steps
}
