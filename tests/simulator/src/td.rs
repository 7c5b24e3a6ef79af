//! What a quote says of a TD.

use crate::Module;
use crate::marker::marker;

/// The part of a TD report that is about the TD. Without [`TdReport::td15`] it becomes a quote of version 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TdReport {
    /// `REPORTDATA`.
    pub report_data: [u8; 64],
    /// `MRTD`; a marker by default.
    pub mr_td: [u8; 48],
    /// `MRCONFIGID`.
    pub mr_config_id: [u8; 48],
    /// `MROWNER`.
    pub mr_owner: [u8; 48],
    /// `MROWNERCONFIG`.
    pub mr_owner_config: [u8; 48],
    /// `RTMR0` to `RTMR3`; markers and, for the last, zeros by default.
    pub rtmrs: [[u8; 48]; 4],
    /// `TDATTRIBUTES`; only `SEPT_VE_DISABLE` by default.
    pub attributes: [u8; 8],
    /// `XFAM`.
    pub xfam: [u8; 8],
    /// With it, the quote has version 5 and a body of type 3.
    pub td15: Option<Td15>,
}

/// What TDX 1.5 adds to the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Td15 {
    /// `TEE_TCB_SVN2`, the module as it runs now; as it was at launch if there is none.
    pub current_tcb_svn: Option<[u8; 16]>,
    /// `MRSERVICETD`; zeros without a service TD.
    pub mr_service_td: [u8; 48],
}

impl Default for TdReport {
    fn default() -> Self {
        Self {
            report_data: [0; 64],
            mr_td: marker("TD-NOT-A-REAL-MEASUREMENT"),
            mr_config_id: [0; 48],
            mr_owner: [0; 48],
            mr_owner_config: [0; 48],
            rtmrs: [marker("RTMR0"), marker("RTMR1"), marker("RTMR2"), [0; 48]],
            attributes: [0, 0, 0, SEPT_VE_DISABLE, 0, 0, 0, 0],
            xfam: [0xe7, 0x02, 0x06, 0, 0, 0, 0, 0],
            td15: None,
        }
    }
}

impl Default for Td15 {
    fn default() -> Self {
        Self { current_tcb_svn: None, mr_service_td: [0; 48] }
    }
}

impl TdReport {
    /// The default TD with this report data, version 4.
    #[must_use]
    pub fn new(report_data: [u8; 64]) -> Self {
        Self { report_data, ..Self::default() }
    }

    /// The same TD on TDX 1.5, version 5.
    #[must_use]
    pub fn td15(self) -> Self {
        Self { td15: Some(Td15::default()), ..self }
    }

    /// The same TD under a debugger.
    #[must_use]
    pub fn debug(mut self) -> Self {
        self.attributes[0] |= DEBUG;
        self
    }

    /// The same TD on TDX 1.5, bound to a service TD.
    #[must_use]
    pub fn service_td(self) -> Self {
        Self { td15: Some(Td15 { mr_service_td: marker("SERVICE-TD"), ..Td15::default() }), ..self }
    }

    /// The body of the quote: 584 bytes, or 648 for TDX 1.5.
    ///
    /// Source: "Intel TDX DCAP Quote Generation Library and Quote Verification Library", appendix on quote formats.
    pub(crate) fn body(&self, module: &Module) -> Vec<u8> {
        let mut fields: Vec<&[u8]> = vec![
            &module.tcb_svn,
            &module.measurement,
            &module.signer,
            &module.attributes,
            &self.attributes,
            &self.xfam,
            &self.mr_td,
            &self.mr_config_id,
            &self.mr_owner,
            &self.mr_owner_config,
        ];
        fields.extend(self.rtmrs.iter().map(<[u8; 48]>::as_slice));
        fields.push(&self.report_data);
        if let Some(td15) = &self.td15 {
            fields.push(td15.current_tcb_svn.as_ref().unwrap_or(&module.tcb_svn));
            fields.push(&td15.mr_service_td);
        }
        fields.concat()
    }
}

/// Bit 0 of `TDATTRIBUTES`, "Intel TDX Module ABI Specification" table 3.23.
const DEBUG: u8 = 1;
/// Bit 28 of `TDATTRIBUTES` as a bit of byte 3, same source.
const SEPT_VE_DISABLE: u8 = 1 << 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_lengths_of_the_specification() {
        let td = TdReport::new([9; 64]);
        assert_eq!(td.body(&Module::default()).len(), 584);
        assert_eq!(td.td15().body(&Module::default()).len(), 648);
    }
}
