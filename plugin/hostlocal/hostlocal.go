// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostlocal is the plugin `host-local`. It assigns addresses from ranges of this node. It
// keeps them in files of the reference's format, so either program can replace the other at any
// moment (package ipam).
package hostlocal

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "host-local"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.IPAM,
	About:        "gives out addresses of this node's ranges",
	Capabilities: []string{"ipRanges", "ips"},
	Conf:         func() any { return new(Conf) },
	Validate:     validate,
	Warnings:     doubts,
	Samples:      samples,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

// store returns the store with the reservations of the request's network in dir.
func store(r *plugin.Request, dir string) *ipam.FileStore {
	boot, err := ipam.ReadBoot(r.Session.Paths.Proc)
	if err != nil {
		kernel.Warn(r, err)
	}
	s := traces.Pool(r.Session.Paths, r.Network, dir)
	s.Boot, s.Warn = boot, func(err error) { kernel.Warn(r, err) }
	return s
}

func me(r *plugin.Request) ipam.Holder { return ipam.Holder{ID: r.ContainerID, IfName: r.IfName} }

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	p, err := load(r)
	if err != nil {
		return nil, err
	}
	result := &spec.Result{Routes: p.routes}
	if p.resolvConf != "" {
		if result.DNS, err = readResolvConf(p.resolvConf); err != nil {
			return nil, err
		}
	}
	leases, err := allocate(ctx, r, p)
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		result.IPs = append(result.IPs, spec.IPConfig{Address: l.Address, Gateway: l.Gateway})
	}
	return result, nil
}

func allocate(ctx context.Context, r *plugin.Request, p *pool) ([]ipam.Grant, error) {
	prior := kernel.Of(r).Read(r)
	refused := true
	if prior != nil && r.Session.Dry == nil {
		r.Undo(func(context.Context) error {
			if !refused {
				return nil
			}
			return kernel.Of(r).Records.Write(prior) // the attachment still exists, so its record is restored
		})
	}
	if err := kernel.Of(r).Record(r, &record.Record{DataDir: p.dataDir}); err != nil {
		return nil, err
	}
	if err := r.Step("allocate addresses"); err != nil {
		return nil, err
	}
	leases, err := fromStore(ctx, r, p, isDead(r, prior))
	if err != nil {
		return nil, coded(err)
	}
	refused = false
	pushRelease(r, p, leases)
	return leases, nil
}

func fromStore(ctx context.Context, r *plugin.Request, p *pool, gone func(ipam.Reservation) bool) ([]ipam.Grant, error) {
	mode := ipam.Write
	if r.Session.Dry != nil {
		mode = ipam.ReadOnly
	}
	tx, err := store(r, p.dataDir).Begin(ctx, mode)
	if err != nil {
		return nil, err
	}
	defer tx.Close()
	return ipam.Allocate(tx, &ipam.Request{
		Holder: me(r), Sets: p.sets, Requested: p.requested, Gone: gone, Dry: r.Session.Dry != nil,
	})
}

// pushRelease pushes the release of the allocated addresses to the undo stack. In a dry run it
// only prints the addresses.
func pushRelease(r *plugin.Request, p *pool, leases []ipam.Grant) {
	if r.Session.Dry == nil {
		r.Undo(func(ctx context.Context) error { return release(ctx, r, p.dataDir) })
		return
	}
	for _, l := range leases {
		explain(r, p, l.Address.Addr())
	}
}

func explain(r *plugin.Request, p *pool, a netip.Addr) {
	r.Session.Dry(fmt.Sprintf("reserve %s in %s", a, filepath.Join(p.dataDir, r.Network)))
}

// coded adds the error code to the error of an exhausted pool, or of one that is not this host's.
func coded(err error) error {
	if errors.Is(err, ipam.ErrNotGranted) {
		return spec.Errorf(spec.CodeNotAvailable, "%w", err).
			WithDetails("patchbayd hosts writes the grant; `patchbayd hosts ls` on this node shows what is wrong")
	}
	if errors.Is(err, ipam.ErrExhausted) {
		return spec.Errorf(spec.CodeNotAvailable, "%w", err).
			WithDetails("every address is reserved; `patchbay gc` on this node finds those of dead containers")
	}
	return err
}

// del releases everything of the attachment, in the directories of the record and of the
// configuration. The configuration need not be valid.
func del(ctx context.Context, r *plugin.Request) error {
	dir, err := configuredDir(r)
	if err != nil {
		kernel.Warn(r, err)
	}
	return kernel.Of(r).Detach(r, nil, func(rec *record.Record) error {
		errs := []error{release(ctx, r, dir)}
		if rec != nil && rec.DataDir != "" && rec.DataDir != dir {
			errs = append(errs, release(ctx, r, rec.DataDir))
		}
		return errors.Join(errs...)
	})
}

func release(ctx context.Context, r *plugin.Request, dir string) error {
	return releaseOf(ctx, r, dir, me(r), nil)
}

// releaseOf releases the reservations of an owner for which match returns true.
func releaseOf(ctx context.Context, r *plugin.Request, dir string, o ipam.Holder, match func(ipam.Reservation) bool) error {
	tx, err := store(r, dir).Begin(ctx, ipam.Existing)
	if err != nil {
		return err
	}
	defer tx.Close()
	_, err = ipam.Release(tx, o, match)
	return err
}

// check finds the reservations of this container and interface. It also checks that every address
// of the previous result that lies in our ranges is reserved.
func check(ctx context.Context, r *plugin.Request) error {
	p, err := load(r)
	if err != nil {
		return err
	}
	tx, err := store(r, p.dataDir).Begin(ctx, ipam.Existing)
	if err != nil {
		return err
	}
	defer tx.Close()
	held, err := tx.Held(me(r))
	if err != nil {
		return err
	}
	if r.Session.Dry != nil {
		for _, h := range held {
			explain(r, p, h.Addr)
		}
	}
	missing := lost(p, r.Prev(), held)
	if len(held) > 0 && !missing.IsValid() {
		return nil
	}
	what := "any"
	if missing.IsValid() {
		what = missing.String()
	}
	return spec.Errorf(spec.CodeInternal, "host-local: Failed to find address added by container %v", r.ContainerID).
		WithDetails("interface %s, directory %s, missing %s", r.IfName, filepath.Join(p.dataDir, r.Network), what)
}

// lost returns the first address of the result that lies in our ranges but is not reserved.
func lost(p *pool, prev *spec.Result, held []ipam.Reservation) netip.Addr {
	if prev == nil {
		return netip.Addr{}
	}
	have := map[netip.Addr]bool{}
	for _, h := range held {
		have[h.Addr] = true
	}
	for _, ip := range prev.IPs {
		a := ip.Address.Addr().Unmap()
		for _, set := range p.sets {
			if set.Contains(a) && !have[a] {
				return a
			}
		}
	}
	return netip.Addr{}
}

// status reports whether an ADD would get its addresses. A runtime may send ranges with each ADD
// (capability ipRanges); status cannot check those.
func status(ctx context.Context, r *plugin.Request) error {
	p, err := load(r)
	if errors.Is(err, ipam.ErrNoRanges) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := durable.WritableDir(filepath.Join(p.dataDir, r.Network)); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "state directory is not writable: %w", err)
	}
	tx, err := store(r, p.dataDir).Begin(ctx, ipam.Existing)
	if err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "state directory cannot be used: %w", err)
	}
	defer tx.Close()
	return coded(ipam.Status(tx, p.sets, isDead(r, nil)))
}

// readResolvConf reads the file that the option resolvConf names.
func readResolvConf(path string) (spec.DNS, error) {
	data, err := durable.ReadConf(path) // does not wait for a pipe
	if err != nil {
		return spec.DNS{}, err
	}
	dns, err := parseResolvConf(bytes.NewReader(data))
	if err != nil {
		return dns, fmt.Errorf("read %s: %w", path, err)
	}
	return dns, nil
}

// parseResolvConf reads the lines of resolv.conf(5) that a result can contain. All nameserver,
// search and options lines count. Of several domain lines only the last one counts.
func parseResolvConf(r io.Reader) (dns spec.DNS, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		fields := strings.Fields(line)
		if len(fields) < 2 || line[0] == '#' || line[0] == ';' {
			continue
		}
		switch fields[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, fields[1])
		case "domain":
			dns.Domain = fields[1]
		case "search":
			dns.Search = append(dns.Search, fields[1:]...)
		case "options":
			dns.Options = append(dns.Options, fields[1:]...)
		}
	}
	return dns, lines.Err()
}
