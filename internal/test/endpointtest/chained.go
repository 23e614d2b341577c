// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpointtest

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Chained is a call of a chained plugin, in process.
type Chained struct {
	Plugin  *plugin.Plugin
	Session func(*plugin.Session) // completes it
	Call    spec.Call             // without path and configuration
	Network string
	Prev    *spec.Result // nil for a call without one
}

// Do calls the plugin and returns its answer. conf is merged over what every configuration has.
func (c Chained) Do(ctx context.Context, t testing.TB, conf string) ([]byte, error) {
	t.Helper()
	m := map[string]any{"cniVersion": "1.1.0", "name": c.Network, "type": c.Plugin.Name}
	if c.Prev != nil {
		m["prevResult"] = c.Prev
	}
	Must(t, json.Unmarshal([]byte(conf), &m))
	data, err := json.Marshal(m)
	Must(t, err)
	c.Call.Config, c.Call.Path = data, []string{"/nonexistent"}
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{c.Plugin})
		c.Session(s)
		return s
	}}
	return b.Invoke(ctx, c.Plugin.Name, &c.Call)
}
