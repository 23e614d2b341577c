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

	"github.com/patchbay-net/patchbay/daemons/internal/doubt"
	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// cacheFile has the known Nodes, so that the agent can start without the API server.
const cacheFile = "nodes.json"

// cacheSchema is the version of the file's format. A newer one is not read.
const cacheSchema = 1

// cacheLimit is the size, in bytes, of the file of some 100,000 Nodes.
const cacheLimit = 64 << 20

type cached struct {
	Schema  int           `json:"schema"`
	Nodes   []plan.Node   `json:"nodes"`
	Deleted []deletedNode `json:"left,omitempty"`

	Missing map[string]time.Time `json:"missingSince,omitempty"` // by the Node's name
}

// deletedNode is a Node that was deleted, and when.
type deletedNode struct {
	Node plan.Node `json:"node"`
	At   time.Time `json:"deleted"`
}

func cachePath(p paths.Paths) string { return filepath.Join(StateDir(p), cacheFile) }

// readCache reads the Nodes that the agent has saved.
func readCache(path string) (c cached, data []byte, err error) {
	data, err = durable.ReadUpTo(path, cacheLimit)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err == nil && c.Schema != cacheSchema {
		err = fmt.Errorf("schema %d; this program reads %d", c.Schema, cacheSchema)
	}
	return c, data, err
}

// load takes over the saved Nodes. Without them the agent waits for the API server.
func (a *Agent) load() error {
	c, data, err := readCache(cachePath(a.opts.Paths))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w: the agent waits for the API server, which has its content too", cachePath(a.opts.Paths), err)
	}
	there, missing, deleted := map[string]plan.Node{}, map[string]doubt.Past[plan.Node]{}, map[string]doubt.Past[plan.Node]{}
	for _, n := range c.Nodes {
		since, known := c.Missing[n.Name]
		if !known {
			since = a.mirror.now()
		}
		if there[n.Name] = n; n.Missing {
			missing[n.Name] = doubt.Past[plan.Node]{Object: n, At: since}
		}
	}
	for _, l := range c.Deleted {
		deleted[l.Node.Name] = doubt.Past[plan.Node]{Object: l.Node, At: l.At}
	}
	a.mirror.nodes.Restore(there, missing, deleted)
	a.saved = data
	return nil
}

// save writes the Nodes, and those that were deleted lately, if they differ.
func (a *Agent) save(v view) error {
	c := cached{Schema: cacheSchema, Nodes: v.nodes, Missing: v.missing}
	for _, p := range v.deleted {
		c.Deleted = append(c.Deleted, deletedNode{p.Object, p.At})
	}
	data, err := json.Marshal(c)
	if err != nil || bytes.Equal(data, a.saved) {
		return err
	}
	if err := durable.WriteDurable(cachePath(a.opts.Paths), data, 0o600); err != nil {
		return err
	}
	a.saved = data
	return nil
}
