// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/resident"
	"github.com/patchbay-net/patchbay/internal/services/saved"
)

// saveEvery is the shortest time between two writes of the file, which has 6 MB for 10,000 Services with 57,000 endpoints. The first change after a pause is
// written at once, and the end of the agent writes what is left.
const saveEvery = time.Minute

// recollect reads the cache.
func (p *serviceProxy) recollect() error {
	if !p.choices.On {
		return nil
	}
	all, data, err := saved.Load(p.paths)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = p.cluster.Restore(all)
	}
	if err != nil {
		return fmt.Errorf("use %s: %w: the agent waits for the API server, which has its content too", saved.Path(p.paths), err)
	}
	p.file = sha256.Sum256(data)
	return nil
}

// save writes the cache, if it differs, and gives the memory back that the writing needed.
func (p *serviceProxy) save() error {
	err := p.write()
	limitMemory()
	resident.TrimMemory(p.paths.Proc) //nolint:errcheck // then it stays as large
	p.status.unsaved(err)
	return err
}

func (p *serviceProxy) write() error {
	var out bytes.Buffer
	if err := p.cluster.Save(&out); err != nil {
		return err
	}
	sum := sha256.Sum256(out.Bytes())
	if sum == p.file {
		return nil
	}
	if err := durable.WriteDurable(saved.Path(p.paths), out.Bytes(), 0o600); err != nil {
		return err
	}
	p.file = sum
	return nil
}

// saveLast writes the cache at the end, if anything has changed.
func (p *serviceProxy) saveLast() {
	select {
	case <-p.unsaved:
		p.save() //nolint:errcheck // it is told, and the API server has it
	default:
	}
}

func removeServiceCache(p paths.Paths) error {
	if err := durable.Remove(saved.Path(p)); err != nil {
		return fmt.Errorf("remove Services: %w", err)
	}
	return nil
}
