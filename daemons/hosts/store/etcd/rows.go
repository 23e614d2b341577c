// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// rows is one table.
type rows struct {
	*Engine
	prefix string // prefix of the table's keys in etcd
}

// page is how many keys one request reads. With objects of the largest size, that is 64 MiB.
const page = 256

func (t rows) Get(ctx context.Context, key string) (out store.Row, err error) {
	err = t.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		got, err := c.Get(ctx, t.prefix+key)
		if err != nil {
			return err
		}
		if len(got.Kvs) == 0 {
			return store.ErrNotFound
		}
		out = store.Row{Key: key, Data: got.Kvs[0].Value, Revision: store.At(got.Kvs[0].ModRevision)}
		return nil
	})
	return out, err
}

// List reads all pages at the revision of the first one. It reads the name of the history
// before. If the history changes meanwhile, a watch from the returned revision finds another
// name.
func (t rows) List(ctx context.Context, prefix string) (out []store.Row, at store.Revision, err error) {
	var history string
	err = t.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		history, _, err = t.history(ctx, c, true)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	var rev int64
	for range 3 { // the revision may be compacted during the read
		if out, rev, err = t.pages(ctx, t.prefix+prefix); !errors.Is(err, store.ErrCompacted) {
			break
		}
	}
	return out, store.InHistory(rev, history), err
}

func (t rows) pages(ctx context.Context, prefix string) (out []store.Row, at int64, err error) {
	end, from, rev := clientv3.GetPrefixRangeEnd(prefix), prefix, int64(0)
	for more := true; more; {
		var got *clientv3.GetResponse
		err := t.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
			got, err = c.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(rev), clientv3.WithLimit(page))
			return err
		})
		if err != nil {
			return nil, 0, err
		}
		if rev == 0 {
			rev = got.Header.Revision
		}
		for _, kv := range got.Kvs {
			out = append(out, store.Row{Key: strings.TrimPrefix(string(kv.Key), t.prefix), Data: kv.Value, Revision: store.At(kv.ModRevision)})
			from = string(kv.Key) + "\x00"
		}
		more = got.More && len(got.Kvs) > 0
	}
	return out, rev, nil
}

func (t rows) Create(ctx context.Context, key string, data []byte, l store.Session) (store.Revision, error) {
	var opts []clientv3.OpOption
	if l != nil {
		id, err := t.leaseID(l)
		if err != nil {
			return "", err
		}
		opts = append(opts, clientv3.WithLease(id))
	}
	absent := clientv3.Compare(clientv3.CreateRevision(t.prefix+key), "=", 0)
	return t.swap(ctx, absent, clientv3.OpPut(t.prefix+key, string(data), opts...), store.ErrExists)
}

func (t rows) Update(ctx context.Context, key string, data []byte, at store.Revision) (store.Revision, error) {
	n, _, err := at.Split()
	if err != nil {
		return "", err
	}
	if n == 0 {
		return "", store.ErrConflict // etcd gives this revision to a missing key
	}
	same := clientv3.Compare(clientv3.ModRevision(t.prefix+key), "=", n)
	return t.swap(ctx, same, clientv3.OpPut(t.prefix+key, string(data), clientv3.WithIgnoreLease()), store.ErrConflict)
}

// swap does op if cond is true, and otherwise returns the error otherwise.
func (t rows) swap(ctx context.Context, cond clientv3.Cmp, op clientv3.Op, otherwise error) (at store.Revision, err error) {
	err = t.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		done, err := c.Txn(ctx).If(cond).Then(op).Commit()
		if err != nil {
			return err
		}
		if !done.Succeeded {
			return otherwise
		}
		at = store.At(done.Header.Revision)
		return nil
	})
	return at, err
}

func (t rows) Delete(ctx context.Context, key string, at store.Revision) error {
	n, _, err := at.Split()
	if err != nil {
		return err
	}
	remove := clientv3.OpDelete(t.prefix + key)
	if n == 0 {
		return t.call(ctx, func(ctx context.Context, c *clientv3.Client) error { _, err := c.Do(ctx, remove); return err })
	}
	return t.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		same := clientv3.Compare(clientv3.ModRevision(t.prefix+key), "=", n)
		done, err := c.Txn(ctx).If(same).Then(remove).Else(clientv3.OpGet(t.prefix+key, clientv3.WithKeysOnly())).Commit()
		switch {
		case err != nil || done.Succeeded:
			return err
		case len(done.Responses[0].GetResponseRange().Kvs) == 0:
			return nil
		}
		return store.ErrConflict
	})
}
