// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/hosts/store"
	"github.com/patchbay-net/patchbay/internal/durable"
)

// takeOver copies the objects of a store in files, which earlier releases used. It does so
// once:
//
//	v1/networks/x.json  {"revision": 7, "value": {...}}
//
// It does not copy an object on a lease, because the agent writes that again. The files stay,
// under another name.
func (s *Engine) takeOver(ctx context.Context, dir string) error {
	old := filepath.Join(dir, "v1")
	for _, table := range []string{"networks", "nodes", "blocks"} {
		files, err := os.ReadDir(filepath.Join(old, table))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, f := range files {
			if err := s.takeOverFile(ctx, table, filepath.Join(old, table, f.Name())); err != nil {
				return fmt.Errorf("take over %s of an earlier release: %w", filepath.Join(old, table, f.Name()), err)
			}
		}
	}
	err := os.Rename(old, old+".taken-over")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s *Engine) takeOverFile(ctx context.Context, table, path string) error {
	name, isObject := strings.CutSuffix(filepath.Base(path), ".json")
	if !isObject {
		return nil // left by a process that was killed
	}
	data, err := durable.Read(path)
	if err != nil {
		return err
	}
	var row struct {
		Lease string
		Value json.RawMessage
	}
	if json.Unmarshal(data, &row) != nil || row.Value == nil {
		row.Value = data // the object is damaged, but must not vanish: lists will name it
	}
	if row.Lease != "" {
		return nil
	}
	_, err = s.Rows(table).Create(ctx, strings.ReplaceAll(name, ",", "/"), row.Value, nil)
	if errors.Is(err, store.ErrExists) {
		return nil // an earlier copy was interrupted
	}
	return err
}
