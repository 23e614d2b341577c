// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// Open opens the store of a URL, for a command. It does not wait for an etcd on other hosts:
//
//	file:///var/lib/patchbay/hosts
//	etcd://HOST[:PORT][,HOST[:PORT]...]/CLUSTER
//	etcds://USER@HOST/CLUSTER?ca=FILE&cert=FILE&key=FILE&password-file=FILE
//
// file is an etcd that this host runs itself, in that directory. The default port is 2379. etcds
// uses TLS with the authorities of the system, or with those in ca. etcd uses TLS too if it has ca,
// cert or key. A password may follow the user in the URL, but then the list of processes shows it
// to other users.
func Open(ctx context.Context, address string) (*Engine, error) {
	return openURL(ctx, address, false, nil)
}

// OpenAgent opens the store of a URL, for the agent. If the store is this host's own, the agent
// serves it to the commands on this host and, if listen is set, to other hosts:
//
//	HOST[:PORT]?ca=FILE&cert=FILE&key=FILE[&names=NAME,NAME]
//
// A program that may write to the store is root on all hosts. So TLS cannot be turned off here,
// and each client needs a certificate that ca has signed, for one of the names if there are any.
func OpenAgent(ctx context.Context, address, listen string) (*Engine, error) {
	if listen == "" {
		return openURL(ctx, address, true, nil)
	}
	host, query, _ := strings.Cut(listen, "?")
	endpoint, err := withPort(host)
	o := &Options{Endpoints: []string{endpoint}}
	if err == nil {
		err = parameters(o, query)
	}
	if err == nil && (o.TLS.CA == "" || o.TLS.Cert == "" || o.TLS.Key == "" || o.Password != "") {
		err = errors.New("it needs ca, cert and key, and may have names")
	}
	if err == nil {
		_, err = o.TLS.serverConfig(nil)
	}
	if err == nil && !strings.HasPrefix(address, "file://") {
		err = fmt.Errorf("this host can only serve its own store (file://), and the store is %s", withoutPassword(address))
	}
	if err != nil {
		return nil, fmt.Errorf("serve the store at %q: %w", listen, err)
	}
	return openURL(ctx, address, true, o)
}

func openURL(ctx context.Context, address string, agent bool, listen *Options) (*Engine, error) {
	scheme, rest, _ := strings.Cut(address, "://")
	switch scheme {
	case "file":
		if !filepath.IsAbs(rest) || strings.ContainsAny(rest, "?#%") {
			return nil, fmt.Errorf("open store %q: it must be file:// with an absolute path", address)
		}
		return openLocal(ctx, rest, agent, listen)
	case "etcd", "etcds":
		o, err := options(rest)
		if err != nil {
			return nil, fmt.Errorf("open store %s: %w", withoutPassword(address), err)
		}
		if o.TLS.Names != "" {
			return nil, fmt.Errorf("open store %s: the parameter names is only for --serve", withoutPassword(address))
		}
		o.TLS.On = scheme == "etcds"
		return connect(o)
	}
	return nil, fmt.Errorf("open store %s: it must begin with file://, etcd:// or etcds://", withoutPassword(address))
}

// Exposed warns if others than the hosts can write to the store, and so are root on them. Otherwise it
// returns "". An etcd on this host is not asked over a network.
func (s *Engine) Exposed() string {
	if s.local() || s.opts.TLS != (TLS{}) || !slices.ContainsFunc(s.opts.Endpoints, remote) {
		return ""
	}
	who := "everything that reaches it, as each container does,"
	if s.opts.Password != "" {
		who = "everybody who reads the packets, which have the password,"
	}
	return fmt.Sprintf("the etcd at %s has no TLS: %s may write to the store, and so is root on every host: use etcds://", strings.Join(s.opts.Endpoints, ","), who)
}

// remote reports whether host:port may be another host's.
func remote(endpoint string) bool {
	host, _, _ := net.SplitHostPort(endpoint)
	addr, err := netip.ParseAddr(host)
	return host != "localhost" && (err != nil || !addr.Unmap().IsLoopback())
}

// withoutPassword returns an address in a form that may be logged.
func withoutPassword(address string) string {
	begin := strings.Index(address, "://") + len("://")
	at := strings.LastIndexByte(address, '@')
	colon := strings.IndexByte(address[min(begin, len(address)):], ':')
	if at < begin || colon < 0 || begin+colon > at {
		return address
	}
	return address[:begin+colon] + ":..." + address[at:]
}

// options parses what follows "etcd://". It does not use the library's parser, which cannot
// parse a list of hosts.
func options(rest string) (o Options, err error) {
	hosts, tail, _ := strings.Cut(rest, "/")
	if path, _, _ := strings.Cut(tail, "?"); strings.Contains(path, "@") { // further errors would show a part of the password
		return o, errors.New("user or password: / is written %2F")
	}
	if i := strings.LastIndexByte(hosts, '@'); i >= 0 {
		user, password, _ := strings.Cut(hosts[:i], ":")
		o.User, err = url.PathUnescape(user)
		var err2 error
		o.Password, err2 = url.PathUnescape(password)
		if err = errors.Join(err, err2); err != nil {
			return o, errors.New("user or password: % is written %25")
		}
		hosts = hosts[i+1:]
	}
	for host := range strings.SplitSeq(hosts, ",") {
		endpoint, err := withPort(host)
		if err != nil {
			return o, err
		}
		o.Endpoints = append(o.Endpoints, endpoint)
	}
	cluster, query, _ := strings.Cut(tail, "?")
	o.Cluster = cluster
	return o, parameters(&o, query)
}

// withPort returns host:port for a host, or for an IPv6 address with or without brackets.
func withPort(host string) (string, error) {
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return net.JoinHostPort(addr.String(), "2379"), nil
	}
	if !strings.Contains(host, ":") {
		host += ":2379"
	}
	name, port, err := net.SplitHostPort(host)
	if err != nil || name == "" || port == "" {
		return "", fmt.Errorf("%q is not host:port", host)
	}
	return host, nil
}

func parameters(o *Options, query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("parameters: %w", err)
	}
	for name, v := range values {
		switch name {
		case "ca":
			o.TLS.CA = v[0]
		case "cert":
			o.TLS.Cert = v[0]
		case "key":
			o.TLS.Key = v[0]
		case "names":
			o.TLS.Names = v[0]
		case "password-file":
			password, err := durable.ReadGiven(v[0])
			if err != nil {
				return fmt.Errorf("password: %w", err)
			}
			o.Password, o.PasswordFile = strings.TrimRight(string(password), "\r\n"), v[0]
		default:
			return fmt.Errorf("unknown parameter %q: use ca, cert, key or password-file", name)
		}
	}
	return nil
}
