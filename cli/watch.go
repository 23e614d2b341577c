// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/packed"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// slowCall is how long a command waits for a plugin before it prints which plugin that is. An
// ADD with DHCP takes half a minute if no server answers.
const slowCall = 2 * time.Second

// verbosity holds the flag --verbose of the commands that call plugins.
type verbosity struct {
	Verbose bool `long:"verbose" short:"v" description:"report each call of a plugin and its outcome on standard error"`
}

// watched calls plugins and reports slow calls on standard error.
type watched struct {
	invoke.Invoker
	app *app
}

// Invoke calls a plugin and reports the call if it is slow, or always with --verbose.
func (w watched) Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error) {
	conf, err := spec.ParseConf(call.Config)
	if err != nil { // the plugin itself reports a wrong configuration
		return w.Invoker.Invoke(ctx, pluginType, call)
	}
	if w.app.verbose && call.Verb != spec.Version {
		w.app.remark("%s: %s %s: started", conf.Name, call.Verb, pluginType)
	}
	waited := fmt.Sprintf("%s of %s", pluginType, conf.Name)
	if caller := callerOfDHCP(call.Config); caller != "" { // the call waits for a DHCP server, so name dhcp
		waited = fmt.Sprintf("dhcp (%s of %s)", caller, conf.Name)
	}
	defer w.app.remarkIfSlow("waiting for " + waited + "…")()
	return w.Invoker.Invoke(ctx, pluginType, call)
}

// callerOfDHCP returns the type of the plugin that calls dhcp: the plugin of a configuration, or a member of
// one of type patchbay. It returns "" if none does.
func callerOfDHCP(config []byte) string {
	plugins := []json.RawMessage{config}
	if members, err := packed.Members(config); err == nil {
		plugins = members
	}
	for _, raw := range plugins {
		if conf, err := spec.ParseConf(raw); err == nil && conf.IPAM.Type == "dhcp" {
			return conf.Type
		}
	}
	return ""
}

// remarkIfSlow prints text after slowCall, unless done is called first.
func (a *app) remarkIfSlow(text string) (done func()) {
	var mu sync.Mutex
	over := false
	stop := a.after(slowCall, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			a.remark("%s", text)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		stop()
	}
}

// after calls f after d, unless stop is called first.
func after(d time.Duration, f func()) (stop func() bool) { return time.AfterFunc(d, f).Stop }

// With --verbose, logEvent prints each event that the runtime reports.
func (a *app) logEvent(e chain.Event) {
	call := fmt.Sprintf("%s: %s %s", e.Network, e.Verb, e.Plugin)
	if e.Rollback {
		call += " (taking the ADD back)"
	}
	ms := float64(e.Duration.Microseconds()) / 1000
	if e.Err != nil {
		a.remark("%s: failed after %.1f ms: %v", call, ms, e.Err)
		return
	}
	a.remark("%s: ok after %.1f ms", call, ms)
}

func (a *app) remark(format string, args ...any) {
	fmt.Fprintf(a.stderr, "patchbay: "+format+"\n", args...) //nolint:errcheck // a remark
}
