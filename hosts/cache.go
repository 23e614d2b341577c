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

	"github.com/patchbay-net/patchbay/internal/atomicfile"
	"github.com/patchbay-net/patchbay/store"
)

// cacheFile is the world on the disk.
const cacheFile = "world.json"

// load reads the world that was saved last. One that is missing or torn is as
// none: the store has it.
func (m *mirror) load(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, cacheFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what was known: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := json.Unmarshal(data, &m.cache); err != nil {
		m.cache = world{}
		return fmt.Errorf("read what was known: %w", err)
	}
	for network, blocks := range m.cache.Own {
		m.cache.give(network, blocks) // an earlier release did not note it
	}
	if !m.cache.Doubted.IsZero() {
		m.cache.Doubted = time.Now()
	}
	m.known = true
	return nil
}

// saved is what the file has.
type saved struct {
	all, lasting []byte // lasting is all but endpoints and when hosts were seen
	at           time.Time
	later        bool // there will be another look
}

// saveEvery is how often the file is written because of what comes and goes all
// the time. What packets go by is on the disk at once.
const saveEvery = 5 * time.Second

// saveRate bounds the bytes a second that are written for that: with 25000
// containers the file has ten megabytes, and some container always comes or goes.
const saveRate = 64 << 10

// pause is how long to wait after a file of so many bytes.
func (s *saved) pause() time.Duration {
	return max(saveEvery, time.Duration(len(s.all)/saveRate)*time.Second)
}

// save keeps the world for the next start, unless it is as it was.
func (a *Agent) save(w *world, now bool) error {
	lasting, err := json.Marshal(w.lasting())
	if err != nil {
		return fmt.Errorf("encode what is known: %w", err)
	}
	if rest := a.saved.pause() - time.Since(a.saved.at); rest > 0 && !now && bytes.Equal(lasting, a.saved.lasting) {
		if !a.saved.later {
			a.saved.later = true
			time.AfterFunc(rest, func() { ring(a.local) })
		}
		return nil
	}
	all, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("encode what is known: %w", err)
	}
	if a.saved.later = false; bytes.Equal(all, a.saved.all) {
		return nil
	}
	if err := atomicfile.WriteDurable(filepath.Join(a.dir, cacheFile), all, 0o600); err != nil {
		return err
	}
	a.saved = saved{all: all, lasting: lasting, at: time.Now()}
	return nil
}

// lasting is a world without what changes all the time.
func (w *world) lasting() world {
	out := *w
	out.Heard, out.Missing.Endpoints = "", nil
	out.Endpoints, out.Nodes = nil, make([]store.Node, len(w.Nodes))
	for i, n := range w.Nodes {
		n.Seen = time.Time{}
		out.Nodes[i] = n
	}
	return out
}
