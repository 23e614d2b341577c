// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// firewalld's names on the system bus (FIREWALLD.DBUS(5)).
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

// errNoFirewalld is wrapped when firewalld cannot be reached.
var errNoFirewalld = errors.New("firewalld is not running")

// daemon is a connection to firewalld.
type daemon struct{ conn *dbus.Conn }

// connect connects to the system bus, at DBUS_SYSTEM_BUS_ADDRESS or its usual address, and
// checks that firewalld is on it. It starts nothing.
func connect(ctx context.Context) (*daemon, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		return nil, fmt.Errorf("%w: connect to the system bus: %w", errNoFirewalld, err)
	}
	d := &daemon{conn}
	ctx, cancel := context.WithTimeout(ctx, firewalldTime)
	defer cancel()
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

func (d *daemon) close() { d.conn.Close() } //nolint:errcheck // nothing to lose

// call calls a method of a zone with one source. firewalld names its errors in
// the text: "ZONE_ALREADY_SET: ...".
func (d *daemon) call(ctx context.Context, method, zone string, source netip.Prefix, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, firewalldTime)
	defer cancel()
	obj := d.conn.Object(firewalldName, firewalldPath)
	return obj.CallWithContext(ctx, method, dbus.FlagNoAutoStart, zone, source.String()).Store(answer)
}

// add makes an address a source of a zone. An existing one is kept.
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

// remove removes an address from a zone. A missing one is no error.
func (d *daemon) remove(ctx context.Context, zone string, source netip.Prefix) error {
	var in string
	err := d.call(ctx, zoneRemove, zone, source, &in)
	if err != nil && !isError(err, unknownSource) && !isError(err, notEnabled) {
		return fmt.Errorf("remove the address %v from %v zone: %w", source, zone, err)
	}
	return nil
}

// has asks whether an address is in a zone. The reference ignored the answer.
func (d *daemon) has(ctx context.Context, zone string, source netip.Prefix) (yes bool, err error) {
	if err := d.call(ctx, zoneQuery, zone, source, &yes); err != nil {
		return false, fmt.Errorf("failed to find the address %v in %v zone: %w", source, zone, err)
	}
	return yes, nil
}

// isError reports whether err is a D-Bus error of this name, or firewalld's of this code,
// which it writes at the beginning of the message.
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
