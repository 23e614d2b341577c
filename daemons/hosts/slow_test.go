// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/test/chaos"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// slow is a store that takes 4 s for each request. A list needs two requests.
type slow struct{ store.Store }

const slowness = 4 * time.Second

func (s slow) Networks() store.Table[store.Network] {
	return eachLate[store.Network]{s.Store.Networks()}
}
func (s slow) Nodes() store.Table[store.Node]   { return eachLate[store.Node]{s.Store.Nodes()} }
func (s slow) Blocks() store.Table[store.Block] { return eachLate[store.Block]{s.Store.Blocks()} }
func (s slow) Entries() store.Table[store.Entry] {
	return eachLate[store.Entry]{s.Store.Entries()}
}

func (s slow) Session(ctx context.Context, ttl time.Duration) (store.Session, error) {
	if err := wait(ctx, slowness); err != nil {
		return nil, err
	}
	return s.Store.Session(ctx, ttl)
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

type eachLate[T store.Object] struct{ store.Table[T] }

func (t eachLate[T]) Get(ctx context.Context, key string) (i store.Item[T], err error) {
	if err = wait(ctx, slowness); err == nil {
		i, err = t.Table.Get(ctx, key)
	}
	return i, err
}

func (t eachLate[T]) List(ctx context.Context, prefix string) (all []store.Item[T], at store.Revision, err error) {
	if err = wait(ctx, 2*slowness); err == nil {
		all, at, err = t.Table.List(ctx, prefix)
	}
	return all, at, err
}

func (t eachLate[T]) Create(ctx context.Context, o T, l store.Session) (at store.Revision, err error) {
	if err = wait(ctx, slowness); err == nil {
		at, err = t.Table.Create(ctx, o, l)
	}
	return at, err
}

func (t eachLate[T]) Update(ctx context.Context, o T, was store.Revision) (at store.Revision, err error) {
	if err = wait(ctx, slowness); err == nil {
		at, err = t.Table.Update(ctx, o, was)
	}
	return at, err
}

func (t eachLate[T]) Delete(ctx context.Context, key string, at store.Revision) error {
	if err := wait(ctx, slowness); err != nil {
		return err
	}
	return t.Table.Delete(ctx, key, at)
}

// The store is slow. An agent still does all its work in one pass.
func TestSlowStore(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/state", 0o700))
	synctest.Test(t, func(t *testing.T) {
		s := chaos.NewStore().Client()
		for _, name := range []string{"lan", "lan1", "lan2"} {
			n := lan()
			n.Name, n.Subnets = name, []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200 + name[len(name)-1]%8, 0, 0}), 16)}
			must(t, Admin{s}.Create(t.Context(), n))
		}
		a, err := New(Options{
			Store: slow{s}, Name: "me", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ConfDir: dir + "/net.d", DataRoot: dir + "/data",
			Paths: paths.Paths{State: dir + "/state", CNI: dir + "/cni", Proc: "/proc"}, TTL: 30 * time.Second, Reclaim: 24 * time.Hour, Log: t.Logf,
		})
		must(t, err)
		a.mirror.changed = func() {}
		r, err := a.mirror.read(t.Context(), a.opts.Store)
		must(t, err)
		a.mirror.replace(r)
		must(t, a.tend(t.Context()))
		if wrong := a.problems.All(); len(wrong) > 0 || len(a.mirror.cache.Own) != 3 {
			t.Errorf("wrong: %v; it has %v", wrong, a.mirror.cache.Own)
		}
		w, err := Admin{s}.read(t.Context())
		if must(t, err); !w.present()[a.ID()] {
			t.Error("it is not present")
		}
	})
}
