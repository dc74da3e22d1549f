"""Foreign archives: any tar taken in under the capture's own rules, and portable tars given out."""
