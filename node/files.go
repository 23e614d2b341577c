// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/node/plan"
)

// cacheFile has the known Nodes, so that the agent can start without the API server.
const cacheFile = "nodes.json"

// cacheSchema is the version of the file's format. A newer one is not read.
const cacheSchema = 1

// cacheLimit is the size, in bytes, of the file of some 100,000 Nodes.
const cacheLimit = 64 << 20

type cached struct {
	Schema int         `json:"schema"`
	Nodes  []plan.Node `json:"nodes"`
	Left   []left      `json:"left,omitempty"`

	Missing map[string]time.Time `json:"missingSince,omitempty"` // by the Node's name
}

func (a *Agent) cachePath() string { return filepath.Join(StateDir(a.opts.Paths), cacheFile) }

// load reads the saved Nodes. Without them the agent waits for the API server.
func (a *Agent) load() error {
	data, err := durable.ReadUpTo(a.cachePath(), cacheLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var c cached
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err == nil && c.Schema != cacheSchema {
		err = fmt.Errorf("schema %d; this program reads %d", c.Schema, cacheSchema)
	}
	if err != nil {
		return fmt.Errorf("read %s, the API server has its content, too: %w", a.cachePath(), err)
	}
	for _, n := range c.Nodes {
		a.mirror.nodes[n.Name] = n
		if since, known := c.Missing[n.Name]; n.Missing && known {
			a.mirror.since[n.Name] = past(since, a.mirror.now())
		} else if n.Missing {
			a.mirror.since[n.Name] = a.mirror.now()
		}
	}
	for _, l := range c.Left {
		l.At = past(l.At, a.mirror.now())
		a.mirror.left[l.Node.Name] = l
	}
	a.saved = data
	return nil
}

// past returns a time, or now if the clock was set back since.
func past(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return t
}

// save writes the Nodes, and those that were deleted lately, if they differ.
func (a *Agent) save(v view) error {
	data, err := json.Marshal(cached{cacheSchema, v.nodes, v.left, v.missing})
	if err != nil || bytes.Equal(data, a.saved) {
		return err
	}
	if err := durable.WriteDurable(a.cachePath(), data, 0o600); err != nil {
		return err
	}
	a.saved = data
	return nil
}
