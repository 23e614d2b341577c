// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/store"
	"github.com/patchbay-net/patchbay/store/typed"
)

// row is the file of an object.
type row struct {
	Revision int64           `json:"revision"`
	Lease    string          `json:"lease,omitempty"`
	Value    json.RawMessage `json:"value,omitempty"` // of package typed
}

const ending = ".json"

// path returns the path of an object. A key has no comma.
func (s *Store) path(table, key string) string {
	return filepath.Join(s.dir, table, strings.ReplaceAll(key, "/", ",")+ending)
}

func keyOf(name string) (key string, ok bool) {
	name, ok = strings.CutSuffix(name, ending)
	return strings.ReplaceAll(name, ",", "/"), ok
}

// readRow reads the file of an object. If it is damaged, its content becomes the value, and
// its revision is one that no caller can have.
func readRow(path string) (r row, err error) {
	data, err := durable.Read(path)
	switch {
	case errors.Is(err, durable.ErrIrregular):
		return row{Revision: damaged, Value: []byte(err.Error())}, nil
	case err != nil:
		return r, err
	case json.Unmarshal(data, &r) != nil || r.Revision <= 0:
		return row{Revision: damaged, Value: data}, nil
	}
	return r, nil
}

// damaged is the revision of a file without a readable one.
const damaged = -1

// newestRow returns the newest change of any object.
func (s *Store) newestRow() (newest int64, err error) {
	for _, table := range typed.Names() {
		err := s.each(table, "", func(_ string, r row) error {
			newest = max(newest, r.Revision)
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return newest, nil
}

// each calls f for the objects of a table whose keys begin with prefix.
func (s *Store) each(table, prefix string, f func(key string, r row) error) error {
	names, err := readNames(filepath.Join(s.dir, table))
	if err != nil {
		return err
	}
	for _, name := range names {
		key, ok := keyOf(name)
		if !ok || !strings.HasPrefix(key, prefix) {
			continue
		}
		r, err := readRow(filepath.Join(s.dir, table, name))
		if err == nil {
			err = f(key, r)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// rows is a table.
type rows struct {
	*Store
	table string
}

// read returns an object, or ErrNotFound.
func (t rows) read(key string) (row, error) {
	r, err := readRow(t.path(t.table, key))
	if errors.Is(err, fs.ErrNotExist) {
		return r, store.ErrNotFound
	}
	return r, err
}

func (t rows) Get(ctx context.Context, key string) (out typed.Row, err error) {
	err = t.locked(ctx, func() error {
		r, err := t.read(key)
		out = typed.Row{Key: key, Data: r.Value, Revision: typed.Revision(r.Revision)}
		return err
	})
	return out, err
}

func (t rows) List(ctx context.Context, prefix string) (out []typed.Row, at store.Revision, err error) {
	err = t.locked(ctx, func() error {
		history, err := t.history()
		if err != nil {
			return err
		}
		at = store.InHistory(t.head, history)
		return t.each(t.table, prefix, func(key string, r row) error {
			out = append(out, typed.Row{Key: key, Data: r.Value, Revision: typed.Revision(r.Revision)})
			return nil
		})
	})
	return out, at, err
}

func (t rows) Create(ctx context.Context, key string, data []byte, l store.Lease) (at store.Revision, err error) {
	err = t.locked(ctx, func() error {
		id, err := t.leaseID(l)
		if err != nil {
			return err
		}
		switch _, err := t.read(key); {
		case err == nil:
			return store.ErrExists
		case !errors.Is(err, store.ErrNotFound):
			return err
		}
		at, err = t.commit(change{Table: t.table, Key: key, row: row{Lease: id, Value: data}})
		return err
	})
	return at, err
}

func (t rows) Update(ctx context.Context, key string, data []byte, read store.Revision) (at store.Revision, err error) {
	err = t.locked(ctx, func() error {
		r, err := t.read(key)
		if errors.Is(err, store.ErrNotFound) || err == nil && typed.Revision(r.Revision) != read {
			return store.ErrConflict
		}
		if err != nil {
			return err
		}
		at, err = t.commit(change{Table: t.table, Key: key, row: row{Lease: r.Lease, Value: data}})
		return err
	})
	return at, err
}

func (t rows) Delete(ctx context.Context, key string, at store.Revision) error {
	return t.locked(ctx, func() error {
		r, err := t.read(key)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil
		case err != nil:
			return err
		case at != "" && typed.Revision(r.Revision) != at:
			return fmt.Errorf("%w: it is at %d", store.ErrConflict, r.Revision)
		}
		_, err = t.commit(change{Table: t.table, Key: key, Gone: true})
		return err
	})
}
