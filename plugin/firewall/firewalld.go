// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
)

// These are firewalld's names on the system bus (FIREWALLD.DBUS(5)).
const (
	busName        = "org.freedesktop.DBus"
	firewalldName  = "org.fedoraproject.FirewallD1"
	firewalldPath  = "/org/fedoraproject/FirewallD1"
	zoneAdd        = firewalldName + ".zone.addSource"
	zoneRemove     = firewalldName + ".zone.removeSource"
	zoneQuery      = firewalldName + ".zone.querySource"
	alreadySet     = "ZONE_ALREADY_SET"
	unknownSource  = "UNKNOWN_SOURCE"
	notEnabled     = "NOT_ENABLED"
	firewalldTime  = 10 * time.Second // a reload of a large firewall takes seconds
	dbusNoSuchName = "org.freedesktop.DBus.Error.NameHasNoOwner"
)

// errNoFirewalld means that firewalld cannot be reached.
var errNoFirewalld = errors.New("firewalld is not running")

// daemon is a connection to firewalld.
type daemon struct {
	conn *dbus.Conn
	end  context.CancelFunc // ends the context of the connection
}

// connect connects to the system bus and checks that firewalld is on it. connect uses the
// address in DBUS_SYSTEM_BUS_ADDRESS or the usual one. connect does not start firewalld.
func connect(ctx context.Context) (*daemon, error) {
	if !hasBus() { // check first: the first timer of a process starts Go's poller
		return nil, fmt.Errorf("%w: connect to the system bus: %w", errNoFirewalld, fs.ErrNotExist)
	}
	ctx, cancel := context.WithTimeout(ctx, firewalldTime) // the library waits for answers without limit
	defer cancel()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	inTime := context.AfterFunc(ctx, end)
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(life))
	if !inTime() || err != nil {
		end()
		return nil, fmt.Errorf("%w: connect to the system bus: %w", errNoFirewalld, cmp.Or(err, context.DeadlineExceeded))
	}
	d := &daemon{conn, end}
	var owner string
	err = conn.BusObject().CallWithContext(ctx, busName+".GetNameOwner", 0, firewalldName).Store(&owner)
	if err == nil {
		return d, nil
	}
	d.close()
	if isError(err, dbusNoSuchName) {
		return nil, errNoFirewalld
	}
	return nil, fmt.Errorf("ask for firewalld: %w", err)
}

// hasBus reports whether the library would find a system bus.
func hasBus() bool {
	if os.Getenv("DBUS_SYSTEM_BUS_ADDRESS") != "" {
		return true
	}
	for _, path := range [...]string{"/var/run/dbus/system_bus_socket", "/run/dbus/system_bus_socket"} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}

func (d *daemon) close() {
	d.conn.Close() //nolint:errcheck // nothing to lose
	d.end()
}

// call calls a method of a zone with one source. firewalld puts the name of an error into the
// error's text: "ZONE_ALREADY_SET: ...".
func (d *daemon) call(ctx context.Context, method, zone string, source netip.Prefix, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, firewalldTime)
	defer cancel()
	obj := d.conn.Object(firewalldName, firewalldPath)
	return obj.CallWithContext(ctx, method, dbus.FlagNoAutoStart, zone, source.String()).Store(answer)
}

// add makes an address a source of a zone. If the zone has it already, added is false.
func (d *daemon) add(ctx context.Context, zone string, source netip.Prefix) (added bool, err error) {
	var in string
	err = d.call(ctx, zoneAdd, zone, source, &in)
	if isError(err, alreadySet) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("failed to add the address %v to %v zone: %w", source, zone, err)
	}
	return true, nil
}

// remove removes an address from a zone. remove accepts that the address is missing.
func (d *daemon) remove(ctx context.Context, zone string, source netip.Prefix) error {
	var in string
	err := d.call(ctx, zoneRemove, zone, source, &in)
	if err != nil && !isError(err, unknownSource) && !isError(err, notEnabled) {
		return fmt.Errorf("remove the address %v from %v zone: %w", source, zone, err)
	}
	return nil
}

// has asks whether an address is in a zone. (The reference ignores the answer.)
func (d *daemon) has(ctx context.Context, zone string, source netip.Prefix) (yes bool, err error) {
	if err := d.call(ctx, zoneQuery, zone, source, &yes); err != nil {
		return false, fmt.Errorf("failed to find the address %v in %v zone: %w", source, zone, err)
	}
	return yes, nil
}

// isError reports whether err is a D-Bus error with this name, or a firewalld error with this
// code. firewalld writes the code at the beginning of the message.
func isError(err error, name string) bool {
	var e dbus.Error
	if !errors.As(err, &e) {
		return false
	}
	if e.Name == name {
		return true
	}
	return len(e.Body) > 0 && strings.HasPrefix(fmt.Sprint(e.Body[0]), name)
}

// source is an address in a firewalld zone. Attachments of networks with equal subnets may share
// a source. So each attachment holds the source as a fact, and the last holder removes it from
// the zone.
type source struct {
	daemon  *daemon // nil in a dry run, and in a DEL if firewalld no longer runs
	zone    string
	address netip.Prefix
	owner   owner.Key
	records *record.Dir
}

// fact returns the name of the fact that the attachments hold.
func (s source) fact() string { return factSource + s.zone + "-" + s.address.String() }

// sourceOf reads zone and address from the name of a fact. A zone may contain hyphens; an
// address contains none.
func sourceOf(fact string) (s source, ok bool) {
	name, ok := strings.CutPrefix(fact, factSource)
	at := strings.LastIndexByte(name, '-')
	if !ok || at < 0 {
		return s, false
	}
	address, err := netip.ParsePrefix(name[at+1:])
	return source{zone: name[:at], address: address}, err == nil
}

// String returns the firewall-cmd command.
func (s source) String() string {
	return fmt.Sprintf("host: firewall-cmd --zone=%s --add-source=%s", s.zone, s.address)
}

// Ensure holds the fact and adds the source to the zone. If this ADD fails, the hold of an
// earlier ADD remains. If the zone had the source before any attachment held it, the source stays
// in the zone.
func (s source) Ensure(ctx context.Context, _ *netstate.Env) (netstate.Undo, error) {
	held, first := s.records.Holds(s.fact(), s.owner), false
	begin := func(*record.Fact) error { first = true; return nil }
	if err := s.records.Hold(ctx, record.Fact{Name: s.fact()}, s.owner, begin); err != nil {
		return nil, err
	}
	added, err := s.daemon.add(ctx, s.zone, s.address)
	if held {
		return nil, err
	}
	undo := func(ctx context.Context) error {
		return s.records.Release(ctx, s.fact(), s.owner, func(record.Fact) error {
			if first && !added {
				return nil
			}
			return s.daemon.remove(ctx, s.zone, s.address)
		})
	}
	if err != nil {
		return nil, errors.Join(err, undo(context.WithoutCancel(ctx)))
	}
	return undo, nil
}

// leave releases the source. Attachments of the reference plugin do not
// hold it. So leave first makes the attachment a holder, so that no other attachment adds the
// source at the same time. If the state directory is read-only, leave cannot do so.
func (s source) leave(ctx context.Context, r *plugin.Request) error {
	if !s.records.Holds(s.fact(), s.owner) {
		if s.daemon == nil {
			return nil
		}
		err := s.records.Hold(ctx, record.Fact{Name: s.fact()}, s.owner, nil)
		if errors.Is(err, syscall.EROFS) {
			return s.remove(ctx, r)
		}
		if err != nil {
			return err
		}
	}
	return s.records.Release(ctx, s.fact(), s.owner, func(record.Fact) error { return s.remove(ctx, r) })
}

// remove removes the source from its zone. If firewalld fails, it only warns.
func (s source) remove(ctx context.Context, r *plugin.Request) error {
	if s.daemon == nil {
		return nil
	}
	if err := s.daemon.remove(ctx, s.zone, s.address); err != nil {
		kernel.Warn(r, err)
	}
	return nil
}

// Diff asks firewalld whether the source is missing.
func (s source) Diff(ctx context.Context, _ *netstate.Env) (string, error) {
	yes, err := s.daemon.has(ctx, s.zone, s.address)
	if err != nil || yes {
		return "", err
	}
	return fmt.Sprintf("failed to find the address %v in %v zone (a reload of firewalld drops it, patchbay repair adds it again)", s.address, s.zone), nil
}

// sourcesOf returns the sources in a record, and the record's facts that are not sources.
func sourcesOf(rec *record.Record) (list []source, facts []string) {
	for _, z := range rec.Zones() {
		for _, a := range z.Sources {
			list = append(list, source{zone: z.Zone, address: a})
		}
	}
	named := len(list)
	for _, fact := range rec.Shared {
		s, ok := sourceOf(fact)
		switch {
		case !ok:
			facts = append(facts, fact)
		case !contains(list[:named], s):
			list = append(list, s)
		}
	}
	return list, facts
}

func contains(list []source, s source) bool {
	for _, other := range list {
		if other.fact() == s.fact() {
			return true
		}
	}
	return false
}

// leaveZones releases sources. If firewalld has ended, it has forgotten them anyway.
func leaveZones(ctx context.Context, r *plugin.Request, k *kernel.Kernel, o owner.Key, list []source) error {
	if len(list) == 0 {
		return nil
	}
	d, err := connect(ctx)
	if err == nil {
		defer d.close()
	} else if !errors.Is(err, errNoFirewalld) {
		kernel.Warn(r, err)
	}
	var errs []error
	for _, s := range list {
		s.daemon, s.owner, s.records = d, o, k.Records
		errs = append(errs, s.leave(ctx, r))
	}
	return errors.Join(errs...)
}
