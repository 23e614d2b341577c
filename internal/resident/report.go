// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// Report lists the problems of a service. The service writes it to a file, which other programs
// read. The file is in /run, so a boot removes it.
type Report struct {
	Schema   int           `json:"schema"`
	At       time.Duration `json:"at"`                // since boot, in ns: a change of the clock does not change it
	Unready  string        `json:"unready,omitempty"` // why the service cannot do its work
	Problems []Reported    `json:"problems,omitempty"`
}

// Reported is one problem. Its text says what to do.
type Reported struct {
	Reason    string `json:"reason"`
	Text      string `json:"text"`
	Elsewhere bool   `json:"elsewhere,omitempty"` // of another node only
}

// reportSchema is the version of the file's format. This program reads no other version.
const reportSchema = 1

// ReportPath returns the file of a service.
func ReportPath(p paths.Paths, service string) string {
	return filepath.Join(p.Run, service, "report.json")
}

// Write writes the report with the current time.
func (r Report) Write(p paths.Paths, service string) error {
	r.Schema, r.At = reportSchema, clock.SinceBoot()
	data, err := json.Marshal(r)
	if err == nil {
		err = durable.MakeDir(p.Run, service)
	}
	if err == nil {
		err = durable.Write(ReportPath(p, service), data)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// ReadReport returns the last report of a service, and its age.
func ReadReport(p paths.Paths, service string) (r Report, age time.Duration, err error) {
	path := ReportPath(p, service)
	data, err := durable.Read(path)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err == nil && r.Schema != reportSchema {
		err = fmt.Errorf("schema %d; this program reads %d", r.Schema, reportSchema)
	}
	if err != nil {
		return Report{}, 0, fmt.Errorf("read %s: %w", path, err)
	}
	return r, clock.SinceBoot() - r.At, nil
}
