// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A running store uses a password that was changed in etcd and then in its file. It
// recovers when a right, or a user, was removed and added again.
func TestPasswordChanged(t *testing.T) {
	t.Parallel()
	server, ctx := newServer(t), t.Context()
	o := server.options(t)
	first := open(t, o)
	must(t, first.call(ctx, func(ctx context.Context, c *clientv3.Client) error { return setUpUsers(ctx, c, first.prefix) }))
	file := filepath.Join(t.TempDir(), "password")
	must(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	root := o
	root.User, root.Password = "root", "secret"
	admin := open(t, root)
	o.User, o.Password, o.PasswordFile, o.Timeout = "patchbay", "secret", file, 2*time.Second
	s := open(t, o)
	as := func(f func(context.Context, *clientv3.Client) error) { t.Helper(); must(t, admin.call(ctx, f)) }
	at, err := s.Networks().Create(ctx, network("n"), nil)
	must(t, err)
	keys := watched(ctx, s.Networks(), "")
	want(t, keys, "+n")
	update := func() error {
		now, err := s.Networks().Update(ctx, network("n"), at)
		if err == nil {
			at = now
		}
		return err
	}
	refusedBy := func(cause error) {
		t.Helper()
		again(t, func() error {
			if err := update(); !errors.Is(err, cause) {
				return errors.Join(errors.New("not yet refused"), err)
			}
			return nil
		})
	}

	as(func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.UserChangePassword(ctx, "patchbay", "other")
		return err
	})
	refusedBy(rpctypes.ErrAuthFailed)
	must(t, os.WriteFile(file, []byte("other\n"), 0o600))
	again(t, update)

	as(func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.UserRevokeRole(ctx, "patchbay", "hosts")
		return err
	})
	refusedBy(rpctypes.ErrPermissionDenied)
	as(func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.UserGrantRole(ctx, "patchbay", "hosts")
		return err
	})
	again(t, update)

	as(func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.UserDelete(ctx, "patchbay")
		return err
	})
	refusedBy(rpctypes.ErrAuthFailed)
	as(func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.UserAdd(ctx, "patchbay", "other")
		_, err2 := c.UserGrantRole(ctx, "patchbay", "hosts")
		return errors.Join(err, err2)
	})
	again(t, update)
}

// An authority and all certificates are replaced: the store trusts the new one once its
// file has it. A watch continues.
func TestAuthorityExchanged(t *testing.T) {
	t.Parallel()
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	issue := func(dir string) *authority {
		a := newAuthority(t)
		a.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: both})
		a.issue("client", &x509.Certificate{ExtKeyUsage: both})
		for _, name := range []string{"server.pem", "server.key", "client.pem", "client.key", "ca.pem"} {
			must(t, os.Rename(a.path(name), filepath.Join(dir, name)))
		}
		return a
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	issue(dir)
	server := newServer(t, "--cert-file="+at("server.pem"), "--key-file="+at("server.key"), "--trusted-ca-file="+at("ca.pem"), "--client-cert-auth")
	o := server.options(t)
	o.TLS = TLS{CA: at("ca.pem"), Cert: at("client.pem"), Key: at("client.key")}
	o.Timeout = 2 * time.Second // of a call that fails
	s, ctx := open(t, o), t.Context()
	rev, err := s.Networks().Create(ctx, network("n"), nil)
	must(t, err)
	keys := watched(ctx, s.Networks(), "")
	want(t, keys, "+n")
	server.kill()
	issue(dir)
	server.start()
	again(t, func() error { _, err := s.Networks().Update(ctx, network("n"), rev); return err })
	want(t, keys, "+n")
}

// A full etcd accepts no change. Its data stays, leases too, and when there is room again
// all continues.
func TestFull(t *testing.T) {
	t.Parallel()
	server, ctx := newServer(t), t.Context()
	s := open(t, server.options(t))
	l, err := s.Session(ctx, minTTL)
	must(t, err)
	_, err = s.Networks().Create(ctx, network("n"), l)
	must(t, err)
	keys := watched(ctx, s.Networks(), "")
	want(t, keys, "+n")
	alarm := func(action pb.AlarmRequest_AlarmAction) {
		t.Helper()
		must(t, s.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
			_, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{Action: action, Alarm: pb.AlarmType_NOSPACE})
			return err
		}))
	}
	alarm(pb.AlarmRequest_ACTIVATE)
	if _, err := s.Networks().Create(ctx, network("m"), nil); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("create: %v", err)
	}
	if _, err := s.Session(ctx, minTTL); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("lease: %v", err)
	}
	for range 3 { // renewed by a full etcd
		must(t, l.(*session).renew(ctx))
	}
	if all, _, err := s.Networks().List(ctx, ""); err != nil || len(all) != 1 {
		t.Errorf("list: %v, %v", all, err)
	}
	alarm(pb.AlarmRequest_DEACTIVATE)
	_, err = s.Networks().Create(ctx, network("m"), l)
	must(t, err)
	want(t, keys, "+m")
}

// minTTL is more than etcd's minimum.
const minTTL = time.Minute
