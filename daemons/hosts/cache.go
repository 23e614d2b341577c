// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/internal/doubt"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// cacheFile is the file in which the agent saves its world.
const cacheFile = "world.json"

// load reads the saved world. If the file is missing or damaged, the agent starts without it
// and reads everything from the store.
func (m *mirror) load(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, cacheFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the saved state: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := json.Unmarshal(data, &m.cache); err != nil {
		m.cache = world{}
		return fmt.Errorf("read the saved state: %w", err)
	}
	if !m.cache.Doubted.IsZero() {
		m.cache.Doubted = time.Now()
	}
	m.loaded = true
	m.restore()
	return nil
}

// restore fills the tables from the saved world. Objects that cannot be read from the store keep these values.
func (m *mirror) restore() {
	w := &m.cache
	restore(&m.networks, w.Networks, w.Missing.Networks)
	restore(&m.nodes, w.Nodes, w.Missing.Nodes)
	restore(&m.blocks, w.Blocks, w.Missing.Blocks)
	restore(&m.endpoints, w.Endpoints, w.Missing.Endpoints)
}

func restore[T store.Object](t *doubt.Table[T], all, missing []T) {
	past := map[string]doubt.Past[T]{}
	for _, object := range missing {
		past[object.Key()] = doubt.Past[T]{Object: object}
	}
	t.Restore(byKey(all), past, nil)
}

// saved describes the content of the file.
type saved struct {
	all, lasting []byte // all has everything; lasting leaves out the endpoints and the times when hosts were seen
	at           time.Time
	later        bool // a timer for the next save is running
}

// saveEvery is the shortest time between two writes of the file, if only endpoints have changed,
// or times when hosts were seen. Changes on which routes depend are saved at once.
const saveEvery = 5 * time.Second

// saveRate limits such writes, in bytes per second. With 25,000 containers the file has ten
// megabytes, and a container starts or stops at nearly every moment.
const saveRate = 64 << 10

// pause returns how long to wait after a write. The larger the file, the longer the wait.
func (s *saved) pause() time.Duration {
	return max(saveEvery, time.Duration(len(s.all)/saveRate)*time.Second)
}

// save writes the world for the next start, if it has changed.
func (a *Agent) save(w *world, now bool) error {
	lasting, err := json.Marshal(w.lasting())
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	if rest := a.saved.pause() - time.Since(a.saved.at); rest > 0 && !now && bytes.Equal(lasting, a.saved.lasting) {
		if !a.saved.later {
			a.saved.later = true
			time.AfterFunc(rest, func() { resident.Signal(a.local) })
		}
		return nil
	}
	all, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	if a.saved.later = false; bytes.Equal(all, a.saved.all) {
		return nil
	}
	if err := durable.WriteDurable(filepath.Join(a.dir, cacheFile), all, 0o600); err != nil {
		return err
	}
	a.saved = saved{all: all, lasting: lasting, at: time.Now()}
	return nil
}

// lasting returns a copy of the world without the parts that change all the time.
func (w *world) lasting() world {
	out := *w
	out.Heard, out.Seen, out.Missing.Endpoints = "", nil, nil
	out.Endpoints, out.Nodes = nil, make([]store.Node, len(w.Nodes))
	for i, n := range w.Nodes {
		n.Seen = time.Time{}
		out.Nodes[i] = n
	}
	return out
}
